"""The steps of a training: what happens between the first forward and the end of `optimizer.step`, made into frames.

Modules called -> their hooks write slots -> `backward_begins` reads the loss -> gradients arrive -> `backward_ends` folds the slots into a
pending micro-batch -> `attempt_begins` takes the pending micro-batches into the open step and reads parameters and gradients ->
`attempt_ends` reads the updates and, where the round is complete, closes the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from .._taps._clock import Clock
from .._taps._listener import Backward
from ._activations import Activations
from ._afar import FarGlimpse
from ._attempt import Attempt, is_skipping, scale_in
from ._beside import Beside
from ._given import Given
from ._glance import Glance
from ._glancing import Glancing
from ._glimpse import Glimpse
from ._mine import Mine
from ._pace import Pace
from ._parameters import Parameters
from ._reading import Reading
from ._reports import Reports
from ._routine import Routine
from ._scalars import Scalars
from ._step import OpenStep, crowded, superseded
from ._table import SiteTable
from ._tap import MicroRows

BY_HAND = 0  # the clock's key for steps taken without any torch optimizer


class Steps:
    """Follows the events of one training; `gate` is called whenever another step opens."""

    def __init__(self, pace: Pace, table: SiteTable, sources: tuple[Activations, Parameters, Glance], reports: Reports, first: int) -> None:
        self.pace, self.table, self.reports = pace, table, reports
        self.activations, self.parameters, glance = sources
        self.clock, self.attempts = Clock(first), 0
        self.gate: Callable[[], None] = lambda: None
        self.open = OpenStep()
        self._pending: list[MicroRows | Glimpse | FarGlimpse] = []
        self._pending_values: dict[int, float] = {}  # scalars that go with the pending micro-batches
        self._given = Given(self.parameters)
        self.glancing = Glancing(self._given, glance, self.activations)
        self.routine = Routine()
        self._in_round: list[frozenset[str]] = []  # parameters that the open step's attempts had
        self._backwards = self._usual_backwards = 0  # since the last attempt; before that one
        self._scalars, self._reading = Scalars(table), Reading(self.parameters)
        self.beside = Beside(self, self._scalars)
        self._scale: torch.Tensor | None = None  # the factor on the loss of the current backward
        self._attempt = Attempt()
        self._create_graph = self._stepped_in_backward = False
        self.first, self._began = first, time.perf_counter()

    @property
    def recorded(self) -> bool:
        """Whether a frame is made of the open step."""
        return self.pace.recorded(self.clock.step)

    @property
    def awaited(self) -> bool:
        """Whether what runs now may come into a frame: an open step that holds an attempt may turn out to have been over."""
        return self.recorded or (bool(self.clock.attempted) and self.pace.recorded(self.clock.step + 1))

    @property
    def under_way(self) -> bool:
        """Whether something of the open step has happened already."""
        return bool(self.clock.attempted or self._pending or self.activations.waiting or self.clock.step == self.first)

    def backward_begins(self, backward: Backward) -> None:
        """A backward pass is about to start."""
        self.routine.ready = False
        if self.activations.evaluation:
            self.beside.add_evaluation()
        if self._pending and not self._attempt:
            if not self.attempts and self.clock.expected <= {BY_HAND} and self.parameters.changed():
                self._step_by_hand()
            elif self._given.thrown_away:
                self._give_up_step()
        self._scale, self._create_graph = backward.scale, backward.create_graph
        wanted = self.attempts > 0 and self._scale is None and not (self.recorded or self._create_graph or self.parameters.scaled)
        self.glancing.begins(first=not (self._pending or self._attempt), wanted=wanted)
        self.activations.begin_backward()
        self.activations.read_losses(backward.roots)

    def backward_ends(self) -> None:
        """It is over: fold its micro-batch."""
        self.activations.end_backward(create_graph=self._create_graph)
        glanced = self.glancing.on and not self._stepped_in_backward
        if glanced and (glimpse := self.glancing.ends(self.reports.passed)) is not None:
            self.parameters.forget_early()
            self.glimpsed(glimpse)
            return
        scale = 1.0 if self._scale is None else float(self._scale)
        micro = self.activations.fold(scale)
        parameters, marks = self._given.end()
        ours = not self.table.are("loss")[micro.site].all()  # a backward of somebody else's says nothing of the models that are watched
        if not (self._given or self._stepped_in_backward or ours):
            return
        self.reports.micro(micro)
        self.parameters.gave(self._given.parameters, scale)
        if self._scale is not None:
            self._pending_values[self._scalars.site("loss_scale", self._scale)] = scale
        if not self.recorded or (not self._attempt and self._backwards + 1 >= self._usual_backwards):
            self.parameters.read_early(parameters, marks)  # where modules are not looked at, after each backward
        else:
            self.parameters.forget_early()
        if alarmed := self.glancing.alarmed(micro, self.parameters.early, scale):
            self.pace.alarm(self.clock.step, alarmed)
        self.reports.locate(replace(micro, full=micro.full or bool(alarmed)), self.parameters.bad_early())
        if self._stepped_in_backward:  # optimizers stepped within this backward: it belongs to the step they made
            self._stepped_in_backward = False
            self._pending = [micro]
            self._adopt()
            if self.clock.complete:
                self._close_step()
            return
        self._pending = [*crowded([*superseded(self._rows(), micro, self.table.running), micro])]
        self._backwards += 1
        if not self.attempts and not self._attempt:  # perhaps the weights are changed by hand: all we shall see is that they have changed
            self._reading.as_given(self.open, self.parameters.alive())

    def glimpsed(self, glimpse: Glimpse | FarGlimpse) -> None:
        """A backward is over at which a glance was enough."""
        self._pending = [glimpse]
        self._backwards += 1
        self.routine.ready = True

    def attempt_begins(self, optimizer: torch.optim.Optimizer, mine: Mine, *, has_closure: bool) -> None:
        """`optimizer` is about to change the parameters `mine`, which are still what the forward used."""
        if (outer := self._attempt.around(mine.names)) is not None:
            self._used_within(outer, optimizer, mine.parameters)
            return
        self._attempt.begin(optimizer, mine.names)
        self._begin_attempt(optimizer, mine)
        if is_skipping(optimizer):
            self.skip("GradScaler")
        if self.recorded:
            clip = self._reading.before(self.open, mine.parameters, gradients=not has_closure, scale=scale_in(optimizer))
            self._reading.unclaimed(self.open, mine.parameters, first=len(self.clock.attempted) == 1)
            self.open.put_values([*self._scalars.clip(optimizer, clip), *self._scalars.rates(optimizer)])
            self._look()

    def evaluated(self) -> None:
        """A closure has been called within an attempt: what it brought is looked at before the optimizer uses it."""
        self._adopt()
        self._look()

    def _look(self) -> None:
        if self.open.bad:
            self.reports.suspect(self.open.frame(self.clock.step))

    def attempt_ends(self, optimizer: torch.optim.Optimizer, mine: Mine, *, has_closure: bool) -> None:
        """`optimizer` has done what it does."""
        if id(optimizer) not in self.clock.attempted:
            return
        self._attempt.end()
        if has_closure:  # its forward and backward ran within the step
            self._adopt()
        if self.recorded:
            if has_closure and not self._attempt.used:
                self.parameters.read_gradients(mine.parameters)
            self._reading.after(self.open, mine.parameters)
            self.open.put_values(self._scalars.decay(optimizer, self.parameters))
        if not self._stepped_in_backward:
            if self.clock.expected == {id(optimizer)} and not (has_closure or self._attempt.used):
                self.routine.learn(optimizer)
            else:
                self.routine.unlearn()
            self._end_attempt()

    def _used_within(self, outer: torch.optim.Optimizer, inner: torch.optim.Optimizer, mine: list[nn.Parameter]) -> None:
        """It is the inner one that uses the gradients, which the outer one may have changed; the update is that of both."""
        self._attempt.used = True
        if self.recorded:
            clip = self._scalars.clip(outer, self.parameters.read_gradients(mine, scale_in(inner)))
            rates = [] if any("lr" in group for group in outer.param_groups) else self._scalars.rates(inner)
            self.open.put_values([*clip, *rates])
            self._reading.keep(self.open)

    def attempt_skipped(self, optimizer: torch.optim.Optimizer, mine: Mine) -> None:
        """A GradScaler did not let `optimizer` step."""
        self._begin_attempt(optimizer, mine)
        self.skip("GradScaler")
        if self.recorded:
            self.open.put_values(self._scalars.clip(optimizer, self._reading.before(self.open, mine.parameters, gradients=True)))
        self._end_attempt()

    def _begin_attempt(self, optimizer: torch.optim.Optimizer, mine: Mine) -> None:
        earlier = self._in_round if self._pending else []
        # A second optimizer for the same parameters, after a backward of its own, has taken the place of the first one.
        if self.clock.is_new_round(id(optimizer)) or not all(mine.names.isdisjoint(names) for names in earlier):
            self._close_step()
        self._in_round.append(mine.names)
        self.clock.attempt(id(optimizer))
        self.attempts += 1
        if torch._C._current_graph_task_id() == -1:
            self.activations.outside()
            if not self._pending and self.activations.waiting:  # the gradients were taken by torch.autograd.grad
                self._pending = [self.activations.fold(without_backward=True)]
        else:
            self._stepped_in_backward = True
        self._usual_backwards, self._backwards = self._backwards, 0
        self._adopt()

    def _end_attempt(self) -> None:
        if self.clock.complete:
            self._close_step()
        else:
            self.gate()

    def goes_by(self) -> None:
        """A step that is left out is over: the usual optimizer has stepped after a backward at which a glance was enough."""
        self.attempts += 1
        self._usual_backwards, self._backwards = 1, 0
        self._pending, self._began = [], time.perf_counter()
        self._given.clear()
        self.clock.step += 1
        self.gate()

    @property
    def skipped(self) -> bool:
        """Whether the open step is known to have no effect."""
        return self.open.holds(self._scalars.site("skipped"))

    @property
    def bad_loss(self) -> bool:
        """Whether a loss of the open step is not finite."""
        return self.open.bad_at(self.table.are("loss"))

    def skip(self, by: str) -> None:
        """Mark the open step as one without effect."""
        self.open.put_value(self._scalars.site("skipped"), 1.0)
        self.reports.skipped(by)

    def _adopt(self) -> None:
        if self.recorded:
            self.open.add(self._rows())
            self.open.put_values(self._pending_values.items())
        self._pending, self._pending_values = [], {}
        self._given.clear()
        self.reports.adopted()

    def _rows(self) -> list[MicroRows]:
        return [micro if isinstance(micro, MicroRows) else micro.rows() for micro in self._pending]

    def _step_by_hand(self) -> None:
        self.clock.attempt(BY_HAND)
        self._adopt()
        self._reading.after(self.open, self.parameters.alive())
        self._close_step()

    def _give_up_step(self) -> None:
        """The gradients of the pending micro-batches were thrown away without an attempt: a guard in the user's loop skipped this step."""
        if self.clock.attempted:
            self._close_step()
        expected = self.clock.expected
        self._adopt()
        self.skip("the training loop")
        self._close_step()
        self.clock.expected = expected

    def _close_step(self) -> None:
        now = time.perf_counter()
        if self.recorded:
            self.open.put_value(self._scalars.site("seconds"), now - self._began)
            frame, self.open = self.open.frame(self.clock.step), OpenStep()
            self.reports.frame(frame)
        self._began = now
        self.open, self._in_round = OpenStep(), []
        self.clock.advance()
        self.gate()

    def finish(self, status: str) -> None:
        """Close what is open: the training is over, well (`finished`) or not."""
        self.activations.end_evaluation()
        if self._pending and not self.attempts and self.parameters.changed():
            self._step_by_hand()
        if status != "finished":  # the forward that failed is what one will want to see
            self._pending.append(self.activations.fold())
        left = any(len(micro.site) for micro in self._rows())
        if self.clock.attempted and left:
            self._close_step()
        if self.clock.attempted or left:
            if self.attempts and not self.clock.attempted:
                self.skip("the end of the training")
            self._adopt()
            self._close_step()
        self.beside.add_evaluation()
        if self.open:  # a model that was only evaluated, or only logged about
            self.reports.late(self.open.frame(self.clock.step))
