"""One watch at work: binds the hooks of its models, the events of the process, the sink and the live rules."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from .._core._errors import FindingError, FindingWarning
from .._core._finding import Finding
from .._core._frame import Frame
from .._core._site import Site
from .._origin._live import LiveTrace
from .._origin._verdict import Verdict
from .._record import Sink
from .._taps._events import Backward, subscribe
from .._taps._tree import on_registration
from ._activations import Activations
from ._armed import Armed, Stopped
from ._attempt import is_skipping
from ._blindness import Blindness
from ._incidents import Incidents, Surroundings
from ._listener import tell
from ._locating import Locator
from ._models import ModelRef, Models
from ._nonfinite import Nonfinite, all_finite
from ._notice import warn
from ._online import Online
from ._open_sessions import close_at_exit
from ._pace import Pace
from ._parameters import Parameters
from ._placing import Placing
from ._reports import Reports
from ._safety import Safety
from ._settings import Settings
from ._signals import until_told
from ._steps import Steps
from ._store import Store
from ._table import SiteTable
from ._tap import MicroRows


class Session:
    """Listens to the process and to the hooks of its models, until it is closed."""

    def __init__(self, settings: Settings, sink: Sink, *, first_step: int = 0, known: Sequence[Site] = ()) -> None:
        self.settings = settings
        self.sink = sink
        self.safety = Safety(sink)
        self.table = SiteTable(known)
        self.online = Online(settings)
        store = Store()
        self.activations = Activations(self.table, store, lambda error: self._lose("activations", error))
        self.placing = Placing(self.activations)
        self.owner = self.placing.owner
        self.blindness = Blindness(self.placing, self.activations)
        self.parameters = Parameters(self.table, store, full=settings.updates == "full", foreign=self.owner.foreign)
        self.models = Models(settings, self.table, (self.placing, self.parameters), self.safety.event)
        self.activations.before_entry = self.models.refresh
        self.locator = Locator(store, self.models.names)
        self.activations.locator = self.locator
        path, rank = getattr(sink, "path", None), getattr(getattr(sink, "meta", None), "rank", 0)
        around = Surroundings(None if path is None else path / "incidents", rank, self.models.alive, self.safety.event)
        self.incidents = Incidents(settings, around, self.locator, self.online.origins)
        self.armed = Armed.from_environment()
        self._named = False  # whether an armed run has shown an origin
        reports = Reports(
            frame=self._closed_frame,
            late=self._late_rows,
            suspect=self._suspect,
            skipped=lambda by: self.safety.event("skipped", by=by),
            micro=self._micro,
            locate=lambda micro, bad: self.safety.run("origin", self._locate, micro, bad),
            adopted=self._name_origins,
        )
        self.pace = Pace(settings.every, settings.budget, lambda: self.safety.spent + self.activations.spent)
        self.activations.seat, self.activations.affords = self.placing.seat, lambda: self.pace.affords
        self.steps = Steps(self.pace, self.table, (self.activations, self.parameters), reports, first_step)
        self.steps.gate = self._gate
        self.micro_listener: Callable[[MicroRows, Sequence[Site]], None] | None = None
        self.closed = False
        self.nonfinite = Nonfinite(settings.on_nonfinite)
        self._news: list[Finding] = []
        self._verdicts: list[Verdict] = []
        self._started = time.perf_counter()
        self._undo: list[Callable[[], None]] = []
        self._gate()
        close_at_exit(self)

    def __del__(self) -> None:
        with suppress(Exception):  # a constructor may have failed half-way, an interpreter may be going down
            self.close("finished")

    def add_models(self, models: dict[str, ModelRef], *, strict: bool) -> None:
        """Watch these models too. If `strict`, a selection that matches nothing in them is an error."""
        self.models.add(models, strict=strict)
        if not self._undo:
            self._undo = [subscribe(self), on_registration(self.models.registered)]
            if self.incidents.on:
                self._undo.append(until_told(self))
        self._look_live()

    # -- events, as told by `subscribe` ---------------------------------------------------------------------------------------------

    def backward_begins(self, backward: Backward) -> None:
        """A backward pass is about to start."""
        if self.locator.busy or not self.owner.trains():
            return
        self.safety.run("origin", self.locator.backward_begins, backward.roots)
        self.safety.run("steps", self.steps.backward_begins, backward)
        self.safety.run("discovery", self.models.look_behind, backward.roots)
        self.safety.run("blindness", lambda: self.blindness.backward_begins(self.models.alive()))
        self.deliver()

    def backward_ends(self, failed: bool) -> None:
        """It is over."""
        if self.locator.busy or not self.owner.here:
            return
        self.safety.run("steps", self.steps.backward_ends)
        self.deliver(quietly=failed)
        self._look_live()

    def attempt_begins(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        """Parameters are still what the forward used."""
        if self.owner.here:
            self.safety.run("origin", self.locator.stepping)
        self._attempt(self.steps.attempt_begins, optimizer, has_closure=has_closure)
        if self.nonfinite.watches and self.owner.here and not has_closure and not self.safety.elsewhere:
            self._guard(optimizer)

    def _guard(self, optimizer: torch.optim.Optimizer) -> None:
        """What `on_nonfinite` asks for; what it raises is meant to reach the training."""
        mine = self.models.mine(optimizer)
        skipped = self.steps.skipped  # for another optimizer: a bad loss was that one's
        if mine and not is_skipping(optimizer) and ((self.steps.bad_loss and not skipped) or not all_finite(mine)):
            now = self.steps.clock.step
            acted = self.nonfinite.act(mine, tuple(f for f in self.online.findings if f.first_step <= now <= f.last_step))
            if acted and not skipped:
                self.safety.run("steps", self.steps.skip, "hookscope")

    def attempt_ends(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        """The optimizer has done what it does."""
        self._attempt(self.steps.attempt_ends, optimizer, has_closure=has_closure)
        if self.owner.here:
            self.nonfinite.put_back()
            self.safety.run("origin", self.locator.stepped)
            self.locator.holding.let_go()
        self._look_live()

    def attempt_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """A GradScaler did not let the optimizer step."""
        self._attempt(self.steps.attempt_skipped, optimizer)
        self.locator.holding.let_go()
        self._look_live()

    def _look_live(self) -> None:
        """In an armed program: look at every operation from the step asked for on, and stop where that was asked for, too."""
        if self.armed is None or self.closed or not self.owner.here:
            return
        step = self.steps.clock.under_way
        if self.armed.stop and (self._named or step > self.armed.step):
            self.close("finished")
            raise Stopped(0)
        if step >= self.armed.step and self.locator.live is None:
            self.locator.live = LiveTrace(self.locator.names)
            self.locator.live.begin()

    def _attempt(self, tell: Callable[..., None], optimizer: torch.optim.Optimizer, **facts: bool) -> None:
        def told() -> None:
            if not self.owner.muted and (mine := self.models.mine(optimizer)):
                self.owner.steps()
                self.incidents.meet(optimizer)
                tell(optimizer, mine, **facts)

        self.safety.run("steps", told)
        self.deliver()

    # -- reports of the steps -------------------------------------------------------------------------------------------------------

    def _gate(self) -> None:
        self.safety.step = self.locator.holding.step = self.steps.clock.step
        self.activations.on = self.steps.awaited and not self.closed and self.safety.off.isdisjoint(("activations", "steps"))
        self.placing.seat(self.activations.on)

    def _lose(self, part: str, error: Exception) -> None:
        self.safety.switch_off(part, error)
        self._gate()

    def _locate(self, micro: MicroRows, bad_gradients: bool) -> None:
        self._verdicts += self.locator.backward_ends(micro, self.table.sites, bad_parameters=bad_gradients)

    def _name_origins(self) -> None:
        """The backward in which something went bad belongs to the step that is open now."""
        for verdict in self._verdicts:
            self.online.origins.append({"event": "origin", "step": self.steps.clock.step, **verdict.as_event()})
            self.safety.event("origin", **verdict.as_event())
            if self.armed is not None:
                self.armed.write(self.steps.clock.step, verdict)
                self._named = True
        self._verdicts.clear()

    def _micro(self, micro: MicroRows) -> None:
        if self.micro_listener is not None:
            self.micro_listener(micro, self.table.sites)

    def _suspect(self, frame: Frame) -> None:
        self.safety.run("rules", lambda: self._found(self.online.suspect(frame, self.table.sites), frame.step, frame))

    def _closed_frame(self, frame: Frame) -> None:
        self.incidents.keep(frame)
        self.safety.run("recording", self._write, frame)
        self.safety.run("rules", lambda: self._found(self.online.see(frame, self.table.sites), frame.step))

    def _found(self, news: Sequence[Finding], step: int, open_frame: Frame | None = None) -> None:
        for finding in news:
            self.safety.event("finding", rule=finding.rule, severity=finding.severity, message=finding.message, first=finding.first_step)
        self._news += news
        self.safety.run("incidents", self.incidents.found, news, step, open_frame)

    def _late_rows(self, frame: Frame) -> None:
        self.safety.run("recording", self._write, frame)

    def _write(self, frame: Frame) -> None:
        self._write_sites()
        self.sink.frame(frame)

    def _write_sites(self) -> None:
        if self.table.grown:
            self.sink.sites(self.table.sites)
            self.table.grown = False

    # -- what comes out -------------------------------------------------------------------------------------------------------------

    def deliver(self, *, quietly: bool = False) -> None:
        """Hand new findings to whoever asked for them. What `on_finding` raises is meant to reach the training."""
        if not (self.owner.here or self.closed):  # it is the training of another thread that has gone wrong
            return
        news, self._news = self._news, []
        loud = tuple(finding for finding in news if finding.severity != "info")
        how = self.settings.on_finding
        if how == "raise" and not quietly:
            if errors := tuple(finding for finding in loud if finding.severity == "error"):
                raise FindingError(errors)
        elif callable(how):
            for finding in loud:
                tell(how, finding, quietly=quietly)
        if how in ("warn", "raise"):
            for finding in loud:
                warn(f"hookscope: {finding.headline}", FindingWarning)

    def flush(self) -> None:
        """Bring what is recorded to where a reader finds it."""
        self.safety.run("recording", self._write_sites)
        self.safety.run("recording", self.sink.flush)

    def told_to_end(self, name: str, *, certainly: bool) -> None:
        """A signal has come; if `certainly`, the process ends by it."""
        self.safety.run("incidents", self.incidents.signalled, name, self.steps.clock.under_way)
        if certainly:
            self.close("interrupted")
        else:
            self.flush()

    def close(self, status: str, error: BaseException | None = None) -> None:
        """Take everything away, write what is left, close the sink. A second call does nothing. `error` has ended the training."""
        if self.closed:
            return
        step = self.steps.clock.under_way
        self.safety.run("steps", self.steps.finish, status)
        if status == "failed" and error is not None:
            self.safety.run("incidents", self.incidents.raised, error, step)
        self.safety.run("blindness", self._tell_blindness)
        self.safety.run("recording", self._last_words)
        self.closed = True
        self._gate()
        for undo in self._undo:
            undo()
        self.placing.close()
        self.locator.close()
        self.activations.forget()
        if not self.safety.elsewhere:
            try:
                self.sink.close(status)
            except Exception as problem:
                self.safety.switch_off("recording", problem)

    def _tell_blindness(self) -> None:
        self.blindness.look(self.models.alive())
        self.blindness.tell(self.safety.event, self._plain)

    def _last_words(self) -> None:
        spent = (self.safety.spent + self.activations.spent) / 1e9
        counts = {"steps": self.steps.clock.step, "optimizer_steps": self.steps.attempts, "alarms": self.pace.alarms}
        self.safety.event("closed", **counts, seconds=time.perf_counter() - self._started, spent_seconds=spent)

    def _plain(self, site: Site) -> str:
        return site.full_path if len(self.models) > 1 else replace(site, model="").full_path
