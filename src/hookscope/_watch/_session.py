"""One watch at work: binds hooks, parameters, the clock, the sink and the live rules.

A training step in a straight line: modules called -> their hooks write slots -> `backward_begins` reads the loss -> gradients arrive ->
`backward_ends` folds the slots into a pending micro-batch -> `attempt_begins` takes the pending micro-batches into the open step and
reads parameters and gradients -> `attempt_ends` reads the updates and, where the round is complete, closes the step: a frame goes to
the sink and to the rules.
"""

from __future__ import annotations

import atexit
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .._core._errors import FindingError, FindingWarning
from .._core._finding import Finding
from .._core._frame import Frame
from .._core._site import Site
from .._record import Sink
from .._taps._clock import Clock
from .._taps._events import subscribe
from .._taps._inventory import candidates, modules
from ._activations import Activations, MicroRows
from ._chosen import choose
from ._notice import warn
from ._online import Online
from ._parameters import Parameters
from ._placing import Placing
from ._safety import Safety
from ._settings import Settings
from ._step import OpenStep, crowded
from ._store import Store
from ._table import SiteTable

BY_HAND = 0  # the clock's key for steps taken without any torch optimizer


class Session:
    """Listens to the process and to the hooks of its models, until it is closed."""

    def __init__(self, settings: Settings, sink: Sink, *, first_step: int = 0, known: Sequence[Site] = ()) -> None:
        self.settings = settings
        self.sink = sink
        self.safety = Safety(sink)
        self.table = SiteTable(known)
        store = Store()
        self.activations = Activations(self.table, store, lambda error: self._lose("activations", error))
        self.placing = Placing(self.activations)
        self.parameters = Parameters(self.table, store, full=settings.updates == "full")
        self.clock = Clock(first_step)
        self.online = Online(settings)
        self.attempts = 0
        self.closed = False
        self.micro_listener: Callable[[MicroRows, Sequence[Site]], None] | None = None
        self._candidates: list[Site] = []
        self._models: dict[str, Callable[[], nn.Module | None]] = {}
        self._open = OpenStep()
        self._pending: list[MicroRows] = []
        self._had_grad: list[nn.Parameter] = []
        self._claimed: set[int] = set()  # parameters that some optimizer has come by with
        self._strangers: set[int] = set()  # parameters of optimizers that belong to no watched model
        self._news: list[Finding] = []
        self._rates: dict[tuple[int, int], int] = {}
        self._stepping = False
        self._close_after_backward = False
        self._started = self._step_started = time.perf_counter()
        self._unsubscribe: Callable[[], None] | None = None
        self._gate()
        _close_at_exit(self)

    def __del__(self) -> None:
        with suppress(Exception):  # a constructor may have failed half-way, an interpreter may be going down
            self.close("finished")

    # -- models ---------------------------------------------------------------------------------------------------------------------

    def add_models(self, models: dict[str, Callable[[], nn.Module | None]], *, strict: bool) -> None:
        """Watch these models too (each is held by a function that returns it while it exists). All are hooked, or none."""
        alive = {name: model for name, get in models.items() if (model := get()) is not None}
        fresh = [site for name, model in alive.items() for site in candidates(model, name)]
        known = [site for site in self._candidates if site.model not in alive]
        chosen = choose(self.settings.selection, known + fresh, strict=strict)
        for name, model in alive.items():
            self.placing.attach(model, name, chosen)
            self.parameters.attach(model, name)
        self._candidates = known + fresh
        self._models |= models
        self.table.keeps = chosen.keeps
        if self._unsubscribe is None:
            self._unsubscribe = subscribe(self)

    def enter_late(self, model: nn.Module, name: str, called: nn.Module, args: tuple[Any, ...]) -> None:
        """A forward was entering through `called`, inside `model`, when that was added: it is under way, though its hook did not see it."""
        path = next(named.path for named in modules(model) if named.module is called)
        enter = self.placing.entries.get(called) or self.placing.watch_entry(called, name, path)
        enter(called, args, {})

    def _mine(self, optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
        """The watched parameters of `optimizer`. If one is new to a watched model, that model is looked through again."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        unknown = {id(p) for p in parameters if self.parameters.get(p) is None} - self._strangers
        if unknown:
            for name, get in list(self._models.items()):
                if (model := get()) is not None and any(id(p) in unknown for p in model.parameters()):
                    self.add_models({name: get}, strict=False)
                    self.safety.event("attached", model=name)
            self._strangers |= {id(p) for p in parameters if self.parameters.get(p) is None}
        return [p for p in parameters if self.parameters.get(p) is not None]

    # -- events, as told by `subscribe` ---------------------------------------------------------------------------------------------

    def backward_begins(self, roots: tuple[torch.Tensor, ...]) -> None:
        """A backward pass is about to start from `roots`."""
        self.safety.run("steps", self._backward_begins, roots)
        self.deliver()

    def backward_ends(self, failed: bool) -> None:
        """It is over."""
        self.safety.run("steps", self._backward_ends)
        self.deliver(quietly=failed)

    def attempt_begins(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        """Parameters are still what the forward used."""
        self.safety.run("steps", self._attempt_begins, optimizer, has_closure)
        self.deliver()

    def attempt_ends(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        """The optimizer has done what it does."""
        self.safety.run("steps", self._attempt_ends, optimizer, has_closure)
        self.deliver()

    def attempt_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """A GradScaler did not let the optimizer step."""
        self.safety.run("steps", self._attempt_skipped, optimizer)
        self.deliver()

    def _backward_begins(self, roots: tuple[torch.Tensor, ...]) -> None:
        if self._pending and not self._stepping:
            if not self.attempts and self.parameters.changed():
                self._step_by_hand()
            elif self.attempts and self._had_grad and all(map(_dropped, self._had_grad)):
                self._give_up_step()
        if self.activations.on:
            for root in roots:
                self.activations.read(Site(-1, "loss", "loss"), root)

    def _backward_ends(self) -> None:
        micro = self.activations.fold()
        if self.micro_listener is not None:
            self.micro_listener(micro, self.table.sites)
        if self._close_after_backward:  # the optimizers stepped within this backward: it belongs to the step they made
            self._close_after_backward = False
            self._open.add([micro])
            self._close_step()
            return
        self._pending = crowded([*self._pending, micro])
        self._had_grad = [p for p in self.parameters.alive() if p.grad is not None]
        if not self.attempts and not self._stepping:  # perhaps the weights are changed by hand: all we shall see is that they have changed
            self._read_before(self.parameters.alive(), gradients=True)

    def _attempt_begins(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        if mine := self._mine(optimizer):
            self._stepping = True
            self._begin_attempt(optimizer)
            if self._recorded:
                self._read_before(self._with_orphans(mine), gradients=not has_closure)
                self._read_rates(optimizer)
                if self._open.bad:
                    self._news += self.online.suspect(self._open.frame(self.clock.step), self.table.sites)

    def _attempt_ends(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        mine = self._mine(optimizer)
        if not mine or id(optimizer) not in self.clock.attempted:
            return
        self._stepping = False
        if has_closure:  # its forward and backward ran within the step
            self._adopt()
        if self._recorded:
            if has_closure:
                self.parameters.read_gradients(mine)
            self.parameters.read_updates(mine)
            self._keep_parameters()
        if self.clock.complete:
            if torch._C._current_graph_task_id() == -1:
                self._close_step()
            else:
                self._close_after_backward = True

    def _attempt_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        if mine := self._mine(optimizer):
            self._begin_attempt(optimizer)
            self._open.skipped = True
            self.safety.event("skipped", by="GradScaler")
            if self._recorded:
                self._read_before(mine, gradients=True)
            if self.clock.complete:
                self._close_step()

    # -- parts of a step ------------------------------------------------------------------------------------------------------------

    @property
    def _recorded(self) -> bool:
        return self.settings.recorded(self.clock.step)

    def _gate(self) -> None:
        self.safety.step = self.clock.step
        self.activations.on = self._recorded and not self.closed and self.safety.off.isdisjoint(("activations", "steps"))

    def _begin_attempt(self, optimizer: torch.optim.Optimizer) -> None:
        if self.clock.is_new_round(id(optimizer)):
            self._close_step()
        self.clock.attempt(id(optimizer))
        self.attempts += 1
        if torch._C._current_graph_task_id() == -1:
            self.activations.outside()
        self._adopt()

    def _adopt(self) -> None:
        if self._recorded:
            self._open.add(self._pending)
        self._pending, self._had_grad = [], []

    def _read_before(self, parameters: list[nn.Parameter], *, gradients: bool) -> None:
        self.parameters.read_values(parameters)
        if gradients:
            self.parameters.read_gradients(parameters)
        self.parameters.remember(parameters)
        self._keep_parameters()

    def _keep_parameters(self) -> None:
        self._open.put(*self.parameters.fold())

    def _read_rates(self, optimizer: torch.optim.Optimizer) -> None:
        for i, group in enumerate(optimizer.param_groups):
            key = id(optimizer), i
            if key not in self._rates:
                self._rates[key] = self._scalar(f"lr.{len(self._rates)}" if self._rates else "lr")
            rate = group.get("lr")
            if isinstance(rate, (int, float)) or (isinstance(rate, torch.Tensor) and rate.is_cpu):
                self._open.put_value(self._rates[key], float(rate))

    def _scalar(self, name: str) -> int:
        return self.table.add(Site(-1, name, "scalar"))

    def _with_orphans(self, mine: list[nn.Parameter]) -> list[nn.Parameter]:
        """With the first optimizer of a round go the parameters that none has claimed: frozen ones, forgotten ones."""
        self._claimed |= {id(p) for p in mine}
        if len(self.clock.attempted) > 1:
            return mine
        return mine + [p for p in self.parameters.alive() if id(p) not in self._claimed]

    def _step_by_hand(self) -> None:
        self.clock.attempt(BY_HAND)
        self._adopt()
        self.parameters.read_updates(self.parameters.alive())
        self._keep_parameters()
        self._close_step()

    def _give_up_step(self) -> None:
        """The gradients of the pending micro-batches were thrown away without an attempt: a guard in the user's loop skipped this step."""
        if self.clock.attempted:
            self._close_step()
        expected = self.clock.expected
        self._adopt()
        self._open.skipped = True
        self.safety.event("skipped", by="the training loop")
        self._close_step()
        self.clock.expected = expected

    def _close_step(self) -> None:
        if self._recorded:
            now = time.perf_counter()
            self._open.put_value(self._scalar("seconds"), now - self._step_started)
            if self._open.skipped:
                self._open.put_value(self._scalar("skipped"), 1.0)
            frame = self._open.frame(self.clock.step)
            self.safety.run("recording", self._write, frame)
            self.safety.run("rules", lambda: self._news.extend(self.online.see(frame, self.table.sites)))
        self._step_started = time.perf_counter()
        self._open = OpenStep()
        self.clock.advance()
        self._gate()

    def _write(self, frame: Frame) -> None:
        self._write_sites()
        self.sink.frame(frame)

    def _write_sites(self) -> None:
        if self.table.grown:
            self.sink.sites(self.table.sites)
            self.table.grown = False

    def _lose(self, part: str, error: Exception) -> None:
        self.safety.switch_off(part, error)
        self._gate()

    # -- what comes out -------------------------------------------------------------------------------------------------------------

    def log(self, name: str, value: float) -> None:
        """Record a number of the user's with the step that is open."""
        self._open.put_value(self._scalar(name), value)

    def deliver(self, *, quietly: bool = False) -> None:
        """Hand new findings to whoever asked for them. What `on_finding` raises is meant to reach the training."""
        news, self._news = self._news, []
        for finding in news:
            self.safety.event("finding", rule=finding.rule, severity=finding.severity, message=finding.message, first=finding.first_step)
        loud = tuple(finding for finding in news if finding.severity != "info")
        how = self.settings.on_finding
        if how == "raise" and not quietly:
            if errors := tuple(finding for finding in loud if finding.severity == "error"):
                raise FindingError(errors)
        elif callable(how):
            for finding in loud:
                how(finding)
        if how in ("warn", "raise"):
            for finding in loud:
                warn(f"hookscope: {finding.headline}", FindingWarning)

    def flush(self) -> None:
        """Bring what is recorded to where a reader finds it."""
        self.safety.run("recording", self._write_sites)
        self.safety.run("recording", self.sink.flush)

    def close(self, status: str) -> None:
        """Take everything away, write what is left, close the sink. A second call does nothing."""
        if self.closed:
            return
        self.safety.run("steps", self._last_frame, status)
        self.safety.run("recording", self._last_words)
        self.closed = True
        self._gate()
        if self._unsubscribe is not None:
            self._unsubscribe()
        self.placing.close()
        self.activations.forget()
        if not self.safety.elsewhere:
            with suppress(OSError):
                self.sink.close(status)

    def _last_frame(self, status: str) -> None:
        if self._pending and not self.attempts and self.parameters.changed():
            self._step_by_hand()
        if status != "finished":  # the forward that failed is what one will want to see
            self._pending.append(self.activations.fold())
        left = any(len(micro.site) for micro in self._pending)
        if self.clock.attempted and left:
            self._close_step()
        if self.clock.attempted or left:
            self._open.skipped |= bool(self.attempts) and not self.clock.attempted
            self._adopt()
            self._close_step()

    def _last_words(self) -> None:
        if silent := [self._plain(tap.site) for tap in self.placing.taps if not tap.fired]:
            self.safety.event("never_fired", modules=silent)
        if self.activations.lost_calls:
            self.safety.event("lost_calls", calls=self.activations.lost_calls)
        spent = (self.safety.spent + self.activations.spent) / 1e9
        seconds = time.perf_counter() - self._started
        self.safety.event("closed", steps=self.clock.step, optimizer_steps=self.attempts, seconds=seconds, spent_seconds=spent)

    def _plain(self, site: Site) -> str:
        return site.full_path if len(self._models) > 1 else replace(site, model="").full_path


_live: weakref.WeakSet[Session] = weakref.WeakSet()


def _close_at_exit(session: Session) -> None:
    if not _live:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _live.add(session)


def _close_all() -> None:
    crashed = hasattr(sys, "last_type") and not hasattr(sys, "ps1")
    for session in list(_live):
        session.close("failed" if crashed else "finished")


def _dropped(parameter: nn.Parameter) -> bool:
    """Whether a gradient that was there is gone: None, or all zero. Waits for the device in the second case."""
    return parameter.grad is None or not bool(parameter.grad.any())
