"""Names the operation at which a value goes bad, the first time it does: by running again what has just run, in the model or outside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from .._core._site import Site
from .._origin._alone import gathers
from .._origin._facts import badness, came_in
from .._origin._forward import Forward, Randomness, fingerprint, keeper, traceable_keeper
from .._origin._live import LiveTrace
from .._origin._play import play
from .._origin._region import Region
from .._origin._replay import replay
from .._origin._verdict import Verdict
from .._origin._walk import Leap
from .._stats import Row
from .._taps._gradient_hook import hook_gradient
from .._taps._leaves import call_tensors, tensors
from ._compiled import Compiled
from ._entered import Entered
from ._evidence import Evidence
from ._habit import Habit
from ._holding import Holding
from ._leaps import Leaps, first_of, leap_event
from ._sentinel import really_bad
from ._store import Store
from ._tap import MicroRows, recorded_output

MAX_FORWARDS = 8  # held at once, between two backwards; of more, the latest
MAX_LEAPS = 8  # replays in one run because finite values have leapt, and as many because they have fallen
MAX_TRIES = 32  # replays in one run: what is bad all the time is named at its 1st, 2nd, 4th, ... backward


class Locator:
    """`names` gives the paths of all watched modules by id."""

    def __init__(self, store: Store, names: Callable[[], dict[int, str]], compiled: Compiled) -> None:
        self.store = store
        self.names = names
        self.compiled = compiled
        self.plain: Callable[[Site], Site] = lambda site: site  # as the run names it
        self.busy = False  # a replay is under way: whatever the hooks see is no training
        self.due = self._idle = False  # `begin_early` is; nothing is usually done before a forward
        self.closed = False
        self.live: LiveTrace | None = None  # in a second run, which looks at everything while it happens
        self.region, self._buffers = Region(), Entered()
        self._forwards: list[Forward] = []
        self.holding = Holding(self._buffers, self.region)
        self._losses: list[torch.Tensor] = []
        self._inputs: list[torch.Tensor] = []
        self._bad, self._leapt, self._leaps = 0, {True: 0, False: 0}, Leaps()
        self.noted: list[dict[str, Any]] = []  # leaps, as events of the step that the backward will belong to
        self._early, self._draws = Habit(), Habit()  # whether torch is used before a forward; Python's or numpy's generators in it
        self._scratch: dict[torch.device, Row] = {}

    # -- the training goes by -------------------------------------------------------------------------------------------------------

    def entered(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, training: bool, closely: bool = True) -> None:
        """A forward enters the model; `closely` asks for whether its parameters are written to before the backward, too."""
        if self.closed:
            return
        self.pause()
        if not training:
            return
        forwards = self._forwards
        if not forwards or all(forward.call < 0 for forward in forwards):
            self._early.entered(bool(self.region.tape.calls))
            self._idle = self._early.idle
        buffers, self._inputs = self._buffers.of(module, silent=self.holding.weights), call_tensors(args, kwargs)
        forward = Forward.beginning(module, args, kwargs, self._inputs, Randomness.now(torch_only=self._draws.goes_on()))
        if forwards:
            forward.call = max([other.call + 1 for other in forwards if other.module is module], default=0)
        forward.parameters = buffers.versions if closely or self.holding.weights else None
        if not forward.call:
            buffers.take()
        self._forwards = [*forwards, forward][-MAX_FORWARDS:]
        self.holding.entered += 1
        if self.live is not None:
            self.live.entered(self._batch)

    def left(self, output: Any, *, training: bool) -> None:
        """And leaves it."""
        if self.closed:
            return
        outputs = tensors(output)
        if not training and all(forward.call < 0 for forward in self._forwards):
            self._begin_region()
            return
        allows_tape = self.compiled.allows_tape()
        if training and self._forwards:
            forward = self._forwards[-1]
            if forward.random.python is not None:
                self._draws.entered(forward.random.drawn)
            keep, forward.compiled = (traceable_keeper, True) if self.compiled.found else (keeper, forward.compiled)
            if self.compiled.found:  # no hook inside may have seen what it returns
                forward.fingerprint = [fingerprint(tensor, self._row(tensor)) for tensor in outputs]
            for i, tensor in enumerate(outputs):
                if tensor.requires_grad and tensor.grad_fn is not None:
                    hook_gradient(tensor, keep(forward.gradients, i))
        if allows_tape:
            self.region.resume(outputs)

    def backward_begins(self, roots: Sequence[torch.Tensor]) -> None:
        """The tape ends with the loss."""
        self.pause()
        self._losses = list(roots)

    def backward_ends(self, micro: MicroRows, sites: Sequence[Site], *, bad_parameters: bool) -> Sequence[Verdict]:
        """If anything has gone bad, run it again; the verdicts, at most one on a forward and one on what is behind it."""
        if self.closed:
            return ()
        verdicts: Sequence[Verdict] = ()
        try:
            verdicts = self._look(micro, sites, bad_parameters)
            self._hold(micro, sites, bad=bad_parameters or bool(really_bad(micro.stats).any()))
        except Exception:
            self.close()
            raise
        self._forget(micro, sites)
        self.over()
        return verdicts

    def passed(self) -> bool:
        """The same where a glance has shown that nothing is bad; False if that is not enough here."""
        if self.closed or self.live is not None or (self.holding.always and self.holding.wants(bad=False)):
            return self.closed
        for forward in self._forwards:
            if not forward.gradients and forward.call >= 0:
                return False
        for forward in self._forwards:
            forward.gradients.clear()
        self._forwards, self._losses, self._inputs = [], [], []
        self.over()
        return True

    def _look(self, micro: MicroRows, sites: Sequence[Site], bad_parameters: bool) -> Sequence[Verdict]:
        bad = really_bad(micro.stats)
        if self.live is not None and (seen := self._seen_live(self.live, bad=bad_parameters or bool(bad.any()))):
            return seen
        if bad.any() or bad_parameters:
            kinds = np.array([sites[n].kind for n in micro.site] or ["none"])
            self._bad += 1
            if self._bad & (self._bad - 1) == 0 and self._bad < 2**MAX_TRIES:
                return self._locate(micro, sites, {kind: bool(bad[kinds == kind].any()) for kind in set(kinds.tolist())})
            return ()
        if not micro.full:
            return ()
        times = self._leaps.among(micro)
        first = None if np.isnan(times).all() else first_of(times, micro, sites)
        if first is not None and self._leapt[rose := bool(times[first] > 1)] < MAX_LEAPS:
            self._leapt[rose] += 1
            self.noted.append(leap_event(self.plain(sites[micro.site[first]]), times[first], self._leaps.usual[first], micro.stats[first]))
            leapt = {sites[n] for n in micro.site[times > 1 if rose else times < 1].tolist()}
            return self._leap(micro, sites, leapt, 10 * float(np.nanmax(times)) if rose else float(times[first]) / 10)
        return ()

    def _seen_live(self, live: LiveTrace, *, bad: bool) -> Sequence[Verdict]:
        if not bad:
            live.forget()
            return ()
        gradients = [p.grad for forward in self._forwards for p in forward.module.parameters() if p.grad is not None]
        found = live.origin([*self._losses, *gradients])
        return () if found is None else [found]

    def evidence(self) -> Evidence:
        """What an incident may tell of the step that is under way, or just over."""
        return self.holding.evidence(self._forwards)

    def _hold(self, micro: MicroRows, sites: Sequence[Site], *, bad: bool) -> None:
        if self._forwards and self.holding.wants(bad=bad):
            self.holding.hold(self._forwards, self._losses, bad=bad)
            self.holding.later(lambda forwards: self._recall_outputs(forwards, micro, sites))

    def _recall_outputs(self, forwards: Sequence[Forward], micro: MicroRows, sites: Sequence[Site]) -> None:
        names = self.names()
        for forward in forwards:
            recorded = recorded_output(micro, sites, names.get(id(forward.module)), forward.call)
            forward.fingerprint = recorded or forward.fingerprint

    def close(self) -> None:
        """Get out of the way, for good."""
        self.closed = True
        if self.live is not None:
            self.live.end()
        self.region.leave()
        self._forget()
        self.holding.let_go()
        self._buffers.clear()

    def pause(self) -> None:
        """The tape stands still: what comes is nobody's loss."""
        tape = self.region.tape
        if tape.noting:
            self.compiled.tape_ends()
        if tape.noting or tape.thread:
            self.region.pause()

    def _forget(self, micro: MicroRows | None = None, sites: Sequence[Site] = ()) -> None:
        """All but the forwards that this backward did not come to: a generator's, when it was the discriminator's."""
        waiting = [] if micro is None else [forward for forward in self._forwards if not forward.gradients and forward.call >= 0]
        for forward in waiting:
            assert micro is not None
            recorded = recorded_output(micro, sites, self.names().get(id(forward.module)), forward.call)
            forward.fingerprint, forward.call = recorded or forward.fingerprint, -1  # no call of the next micro-batch
        for forward in self._forwards:
            forward.gradients.clear()  # a graph that the program keeps holds the hooks that fill it
        self._forwards, self._losses, self._inputs = waiting, [], []

    def over(self) -> None:
        """A backward or a step is: note what prepares the next batch, if anything usually does, as soon as no part of ours is at work.

        The mode is in the way of `zero_grad`, which asks each parameter.
        """
        if self.region.tape.known or self.region.tape.calls:
            self.region.clear()
        self.due = not self._idle

    def begin_early(self) -> None:
        """Do so."""
        self.due = False
        self._begin_region()

    def _begin_region(self) -> None:
        if self.closed or not self.compiled.allows_tape():
            self.region.clear()
        else:
            self.region.open()

    # -- something is bad -----------------------------------------------------------------------------------------------------------

    def _locate(self, micro: MicroRows, sites: Sequence[Site], bad: Mapping[str, bool]) -> Sequence[Verdict]:
        self.busy = True
        try:
            entry = [t for t in self._inputs if badness(t)]
            if entry and len(self._forwards) > 1 and bad.get("output") and (verdicts := self._in_model(micro, sites, bad)):
                return verdicts  # it was another model's output
            if entry:
                verdict = play(self.region, entry, backward=False, batch=self._batch)
                return [replace(verdict or came_in(entry[0], self._batch), outside=True, entry=True)]
            in_model = bad.get("output", False)
            outside = not in_model and (bad.get("loss", False) or any(badness(g) for f in self._forwards for g in f.gradients.values()))
            order = (self._in_region, self._in_model) if outside else (self._in_model, self._in_region)
            return next((verdicts for look in order if (verdicts := look(micro, sites, bad))), ())
        finally:
            self.busy = False

    def _leap(self, micro: MicroRows, sites: Sequence[Site], leapt: set[Site], most: float) -> Sequence[Verdict]:
        """Where nothing is bad, but something is far larger, or smaller, than ever: in the forward, or else in what comes after it."""
        kinds = {site.kind for site in leapt}
        entries = {self.names().get(id(forward.module)) for forward in self._forwards}
        forward, backward = Leap("forward", most), Leap("backward", most)
        self.busy = True
        try:
            given, made = ({s.full_path for s in leapt if s.kind == kind} & entries for kind in ("input", "output"))
            if given and made - given and (verdicts := self._in_model(micro, sites, {}, forward)):
                return verdicts  # it was another model's output
            if given:
                found = play(self.region, self._inputs, backward=False, leap=forward)
            elif "output" in kinds:
                return self._in_model(micro, sites, {}, forward)
            elif "loss" in kinds:
                found = play(self.region, self._losses, backward=False, leap=forward)
            elif any(site.kind == "output_grad" and site.full_path in entries for site in leapt):
                found = play(self.region, self._losses, backward=True, leap=backward)
            else:
                return self._in_model(micro, sites, {}, backward)
            return [] if found is None else [replace(found, outside=True)]
        finally:
            self.busy = False

    @property
    def _batch(self) -> int | None:
        """The length of the first input, where it has one."""
        return next((int(t.shape[0]) for t in self._inputs if t.dim()), None)

    def _in_region(self, _micro: MicroRows, _sites: Sequence[Site], bad: Mapping[str, bool]) -> Sequence[Verdict]:
        verdict = play(self.region, self._losses, backward=not bad.get("loss", False), batch=self._batch)
        return () if verdict is None else [replace(verdict, outside=True)]

    def _in_model(self, micro: MicroRows, sites: Sequence[Site], _bad: Mapping[str, bool], leap: Leap | None = None) -> Sequence[Verdict]:
        names = self.names()
        self._recall_outputs(self._forwards, micro, sites)
        for module in dict.fromkeys(forward.module for forward in self._forwards if not gathers(forward.module)):
            forwards = [forward for forward in self._forwards if forward.module is module]
            found = replay(forwards, self._buffers[module], names, self._row, leap)
            if found.verdicts:
                return found.verdicts
        return ()

    def _row(self, tensor: torch.Tensor) -> Row:
        if tensor.device not in self._scratch:
            self._scratch[tensor.device] = self.store.row(tensor)
        return self._scratch[tensor.device]
