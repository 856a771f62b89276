"""One watch at work: binds the hooks of its models, the events of the process, the sink and the live rules."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from .._core._errors import FindingError, FindingWarning
from .._core._finding import Finding
from .._core._frame import Frame
from .._core._site import Site
from .._record import Sink
from .._taps._events import subscribe
from .._taps._listener import Backward
from .._taps._tree import on_registration
from ._activations import Activations
from ._armed import Armed
from ._attempts import Attempts
from ._blindness import Blindness
from ._compiled import Compiled
from ._glance import Glance
from ._guard import Guard
from ._incidents import Incidents, Surroundings
from ._listener import tell
from ._locating import Locator
from ._models import ModelRef, Models
from ._nonfinite import Nonfinite
from ._notice import warn
from ._online import Online
from ._open_sessions import close_at_exit
from ._origins import Origins
from ._pace import Pace, ranks_of
from ._parameters import Parameters
from ._placing import Placing
from ._reports import Reports
from ._safety import Safety
from ._second_run import SecondRun
from ._settings import Settings
from ._shortcut import Shortcut
from ._signals import until_told
from ._steps import Steps
from ._store import Store
from ._table import SiteTable
from ._tap import MicroRows
from ._upkeep import Upkeep

LAST_LOOK = 8  # the latest backward at which the models are looked through: at the end of the watch they may be gone


class Session:
    """Listens to the process and to the hooks of its models, until it is closed."""

    def __init__(self, settings: Settings, sink: Sink, *, first_step: int = 0, known: Sequence[Site] = ()) -> None:
        self.settings, self.sink = settings, sink
        self.safety, self.table, self.online = Safety(sink), SiteTable(known), Online(settings)
        store = Store()
        self.activations = Activations(self.table, store, lambda error: self._lose("activations", error))
        self.placing = Placing(self.activations)
        self.owner = self.placing.owner
        self.blindness = Blindness(self.placing, self.activations)
        self.parameters = Parameters(self.table, store, full=settings.updates == "full", foreign=self.owner.foreign)
        self.models = Models(settings, self.table, (self.placing, self.parameters), self.safety.event)
        self.activations.before_entry = self.models.refresh
        self.compiled = Compiled(self.placing, self.models.names)
        self.locator = Locator(store, self.models.names, self.compiled)
        self.locator.plain, self.activations.locator = self.models.plain, self.locator
        path, rank = getattr(sink, "path", None), getattr(getattr(sink, "meta", None), "rank", 0)
        around = Surroundings(None if path is None else path / "incidents", rank, self.models.alive, self.safety.event)
        self.incidents = Incidents(settings, around, self.locator, self.online.origins)
        glance = Glance(self.parameters)
        self.upkeep = Upkeep(self.parameters, self._plain, lambda: self.steps.recorded, glance)
        self.origins = Origins(self.locator, self.upkeep, lambda: self.table.sites, self._note)
        reports = Reports(
            frame=self._closed_frame,
            late=self._late_rows,
            suspect=self._suspect,
            skipped=lambda by: self.safety.event("skipped", by=by),
            micro=self._micro,
            locate=lambda micro, bad: self.safety.within("origin", self.origins.locate, micro, bad),
            passed=self._passed,
            adopted=self.origins.name,
        )
        self.pace = Pace(settings.every, settings.budget, lambda: self.safety.spent + self.activations.spent, ranks=ranks_of(sink))
        self.activations.seat, self.activations.affords = self.placing.seat, lambda: self.pace.affords
        self.steps = Steps(self.pace, self.table, (self.activations, self.parameters, glance), reports, first_step)
        self.steps.gate, self.steps.glancing.afar.on, self.attempts = self._gate, not settings.waits, Attempts(self.steps.routine)
        self.shortcut = self.placing.shortcut = Shortcut(self)
        self.micro_listener: Callable[[MicroRows, Sequence[Site]], None] | None = None
        self.closed = self._urgent = False  # the latter: an error has been found, and is not on disk yet
        self.guard = Guard(Nonfinite(settings.on_nonfinite), self.steps, self.models, self.online, self.safety)
        self._news: list[Finding] = []
        self._started = time.perf_counter()
        self._undo: list[Callable[[], None]] = []
        self._gate()
        if (armed := Armed.from_environment()) is not None:
            self.origins.told = lambda verdict: armed.write(self.steps.clock.step, verdict)
        self.second = SecondRun(armed, self)
        self.second.look()
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
        self.safety.run("origin", self.compiled.met)
        self.second.look()

    # -- events, as told by `subscribe` ---------------------------------------------------------------------------------------------

    def backward_nears(self) -> None:
        """A mode that is on the stack when `Tensor.backward` is looked at comes back on it afterwards: the tape ends before that."""
        if self.locator.region.tape.thread and self.owner.here and not self.locator.busy:
            self.safety.within("origin", self.locator.pause)  # `run` would call torch, through the tape

    def backward_begins(self, backward: Backward) -> None:
        """A backward pass is about to start."""
        if self.locator.busy or not self.owner.trains():
            return
        self.attempts.catch_up(self)
        self.safety.run("events", self._backward_begins, backward)
        self.deliver()

    def _backward_begins(self, backward: Backward) -> None:
        within = self.safety.within
        within("origin", self.locator.backward_begins, backward.roots)
        within("steps", self.steps.backward_begins, backward)
        self.shortcut.backwards = backwards = self.shortcut.backwards + 1
        if backwards & (backwards - 1) == 0:  # at the 1st, 2nd, 4th, ...
            within("discovery", self.models.look_behind, backward.roots)
            if backwards <= LAST_LOOK:
                within("blindness", lambda: self.blindness.look(self.models.alive()))

    def backward_ends(self, failed: bool) -> None:
        """It is over."""
        if self.locator.busy or not self.owner.here:
            return
        self.safety.run("steps", self.steps.backward_ends)
        if self.locator.due:
            self.safety.run("origin", self.locator.begin_early)
        self.deliver(quietly=failed)
        self.second.look()

    def attempt_begins(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        """Parameters are still what the forward used."""
        self.attempts.begins(self, optimizer, has_closure=has_closure)

    @property
    def hears_closures(self) -> bool:
        """Whether gradients are looked at before they are used, also those that a closure brings."""
        return self.guard.nonfinite.watches and self.owner.here and not self.safety.elsewhere

    def evaluated(self, optimizer: torch.optim.Optimizer) -> None:
        """The closure that its step was given has been called once more."""
        self.attempts.evaluated(self, optimizer)

    def attempt_ends(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        """The optimizer has done what it does."""
        self.attempts.ends(self, optimizer, has_closure=has_closure)

    def attempt_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """A GradScaler did not let the optimizer step."""
        self.attempts.skipped(self, optimizer)

    # -- reports of the steps -------------------------------------------------------------------------------------------------------

    def _gate(self) -> None:
        self.safety.step = self.locator.holding.step = step = self.steps.clock.step
        if not (self.activations.on or self.steps.clock.attempted) and self.pace.rests(step) and not self.placing.lacking:
            return
        self.activations.on = self.steps.awaited and not self.closed and self.safety.off.isdisjoint(("activations", "steps"))
        self.placing.seat(self.activations.traced.gate(self.activations.on))

    def _lose(self, part: str, error: Exception) -> None:
        self.safety.switch_off(part, error)
        self._gate()

    def _note(self, event: dict[str, Any]) -> None:
        """An event that rules are to know at once, of the step that is open now."""
        self.online.origins.append({"step": self.steps.clock.step, **event})
        self.safety.event(**event)

    def _passed(self) -> bool:
        return self.micro_listener is None and ("origin" in self.safety.off or self.locator.passed())

    def _micro(self, micro: MicroRows) -> None:
        if self.micro_listener is not None:
            self.micro_listener(micro, self.table.sites)

    def _suspect(self, frame: Frame) -> None:
        self.safety.run("origin", self.origins.explain, frame)
        self.safety.run("rules", lambda: self._found(self.online.suspect(frame, self.table.sites), frame.step, frame))

    def _closed_frame(self, frame: Frame) -> None:
        self.incidents.keep(frame)
        self.safety.run("recording", self._write, frame)
        self.safety.run("origin", self.origins.explain, frame)
        self.safety.run("rules", lambda: self._found(self.online.see(frame, self.table.sites), frame.step))
        if self._urgent:  # a program that has gone wrong may be killed next
            self._urgent = False
            self.flush()

    def _found(self, news: Sequence[Finding], step: int, open_frame: Frame | None = None) -> None:
        for finding in news:
            self.safety.event("finding", rule=finding.rule, severity=finding.severity, message=finding.message, first=finding.first_step)
        self._news += news
        self._urgent = self._urgent or any(finding.severity == "error" for finding in news)
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
        if not self._news or not (self.owner.here or self.closed):  # it is the training of another thread that has gone wrong
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
        self.attempts.catch_up(self)
        step = self.steps.clock.under_way
        self.safety.run("steps", self.steps.finish, status)
        self.safety.run("rules", lambda: self._found(self.online.end(status, self.table.sites), step))
        if status == "failed" and error is not None:
            self.safety.run("incidents", self.incidents.raised, error, step)
        self.safety.run("blindness", self._tell_blindness)
        self.safety.run("recording", self._last_words)
        self.closed = True
        self.shortcut.close()
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
        return self.models.plain(site).full_path
