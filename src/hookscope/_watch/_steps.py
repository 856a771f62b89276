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
from .._taps._events import Backward
from ._activations import Activations
from ._attempt import Attempt, is_skipping, scale_in
from ._beside import Beside
from ._clipping import Clip
from ._given import Given
from ._pace import Pace
from ._parameters import Parameters
from ._reports import Reports
from ._scalars import Scalars
from ._sentinel import Sentinel
from ._step import OpenStep, crowded, superseded
from ._table import SiteTable
from ._tap import MicroRows

BY_HAND = 0  # the clock's key for steps taken without any torch optimizer


class Steps:
    """Follows the events of one training; `gate` is called whenever another step opens."""

    def __init__(self, pace: Pace, table: SiteTable, sources: tuple[Activations, Parameters], reports: Reports, first: int) -> None:
        self.pace = pace
        self.sentinel = Sentinel()
        self.table = table
        self.activations, self.parameters = sources
        self.reports = reports
        self.clock = Clock(first)
        self.attempts = 0
        self.gate: Callable[[], None] = lambda: None
        self.open = OpenStep()
        self.beside = Beside(self)
        self._pending: list[MicroRows] = []
        self._pending_values: dict[int, float] = {}  # scalars that go with the pending micro-batches
        self._given = Given(self.parameters)
        self._in_round: set[str] = set()  # parameters that the open step's attempts had
        self._backwards = self._usual_backwards = 0  # since the last attempt; before that one
        self._claimed: set[int] = set()  # parameters that some optimizer has come by with
        self._scalars = Scalars(table)
        self._scale: torch.Tensor | None = None  # the factor on the loss of the current backward
        self._attempt = Attempt()
        self._create_graph = self._stepped_in_backward = False
        self.first = first
        self._began = time.perf_counter()

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

    def log(self, name: str, value: float) -> None:
        """Add a number of the user's to the step it belongs to."""
        self.beside.log(self._scalars.site(name), value)

    def backward_begins(self, backward: Backward) -> None:
        """A backward pass is about to start."""
        self.beside.add_evaluation()
        if self._pending and not self._attempt:
            if not self.attempts and self.clock.expected <= {BY_HAND} and self.parameters.changed():
                self._step_by_hand()
            elif self._given.thrown_away:
                self._give_up_step()
        self._scale, self._create_graph = backward.scale, backward.create_graph
        self._given.begin()
        self.activations.begin_backward()
        for root in backward.roots:
            self.activations.read_loss(root)

    def backward_ends(self) -> None:
        """It is over: fold its micro-batch."""
        scale = 1.0 if self._scale is None else float(self._scale)
        self.activations.end_backward(create_graph=self._create_graph)
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
        if alarmed := self.sentinel.alarmed(micro, self.table.are("loss"), self.parameters.early, scale):
            self.pace.alarm(self.clock.step)
        self.reports.locate(replace(micro, full=micro.full or alarmed), self.parameters.bad_early())
        if self._stepped_in_backward:  # optimizers stepped within this backward: it belongs to the step they made
            self._stepped_in_backward = False
            self._pending = [micro]
            self._adopt()
            if self.clock.complete:
                self._close_step()
            return
        self._pending = crowded([*superseded(self._pending, micro, self.table.running), micro])
        self._backwards += 1
        if not self.attempts and not self._attempt:  # perhaps the weights are changed by hand: all we shall see is that they have changed
            self._read_as_given(self.parameters.alive())

    def attempt_begins(self, optimizer: torch.optim.Optimizer, mine: list[nn.Parameter], *, has_closure: bool) -> None:
        """`optimizer` is about to change the parameters `mine`, which are still what the forward used."""
        names = self.parameters.names(mine)
        if (outer := self._attempt.around(names)) is not None:
            self._used_within(outer, optimizer, mine)
            return
        self._attempt.begin(optimizer, names)
        self._begin_attempt(optimizer, mine)
        if is_skipping(optimizer):
            self.skip("GradScaler")
        if self.recorded:
            clip = self._read_before(mine, gradients=not has_closure, scale=scale_in(optimizer))
            self._read_unclaimed(mine)
            self.open.put_values([*self._scalars.clip(optimizer, clip), *self._scalars.rates(optimizer)])
            self._look()

    def evaluated(self) -> None:
        """A closure has been called within an attempt: what it brought is looked at before the optimizer uses it."""
        self._adopt()
        self._look()

    def _look(self) -> None:
        if self.open.bad:
            self.reports.suspect(self.open.frame(self.clock.step))

    def attempt_ends(self, optimizer: torch.optim.Optimizer, mine: list[nn.Parameter], *, has_closure: bool) -> None:
        """`optimizer` has done what it does."""
        if id(optimizer) not in self.clock.attempted:
            return
        self._attempt.end()
        if has_closure:  # its forward and backward ran within the step
            self._adopt()
        if self.recorded:
            if has_closure and not self._attempt.used:
                self.parameters.read_gradients(mine)
            self.parameters.read_updates(mine)
            self._keep_parameters()
            self.open.put_values(self._scalars.decay(optimizer, self.parameters))
        if not self._stepped_in_backward:
            self._end_attempt()

    def _used_within(self, outer: torch.optim.Optimizer, inner: torch.optim.Optimizer, mine: list[nn.Parameter]) -> None:
        """It is the inner one that uses the gradients, which the outer one may have changed; the update is that of both."""
        self._attempt.used = True
        if self.recorded:
            clip = self._scalars.clip(outer, self.parameters.read_gradients(mine, scale_in(inner)))
            rates = [] if any("lr" in group for group in outer.param_groups) else self._scalars.rates(inner)
            self.open.put_values([*clip, *rates])
            self._keep_parameters()

    def attempt_skipped(self, optimizer: torch.optim.Optimizer, mine: list[nn.Parameter]) -> None:
        """A GradScaler did not let `optimizer` step."""
        self._begin_attempt(optimizer, mine)
        self.skip("GradScaler")
        if self.recorded:
            self.open.put_values(self._scalars.clip(optimizer, self._read_before(mine, gradients=True)))
        self._end_attempt()

    def _begin_attempt(self, optimizer: torch.optim.Optimizer, mine: list[nn.Parameter]) -> None:
        names = self.parameters.names(mine)
        # A second optimizer for the same parameters, after a backward of its own, has taken the place of the first one.
        if self.clock.is_new_round(id(optimizer)) or (self._pending and not self._in_round.isdisjoint(names)):
            self._close_step()
        self._in_round |= names
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
            self.open.add(self._pending)
            self.open.put_values(self._pending_values.items())
        self._pending, self._pending_values = [], {}
        self._given.clear()
        self.reports.adopted()

    def _read_before(self, parameters: list[nn.Parameter], *, gradients: bool, scale: float = 1.0) -> Clip | None:
        self.parameters.read_values(parameters)
        clip = self.parameters.read_gradients(parameters, scale) if gradients else None
        self._keep_parameters()
        return clip

    def _keep_parameters(self) -> None:
        for sites, rows in self.parameters.fold():
            self.open.put(sites, rows)

    def _read_unclaimed(self, mine: list[nn.Parameter]) -> None:
        """With the first optimizer of a round go the parameters that none has claimed: frozen ones, forgotten ones."""
        self._claimed |= {id(p) for p in mine}
        if len(self.clock.attempted) == 1:
            self._read_as_given([p for p in self.parameters.alive() if id(p) not in self._claimed])

    def _read_as_given(self, parameters: list[nn.Parameter]) -> None:
        self.parameters.read_given(parameters)
        self._read_before(parameters, gradients=False)

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
        self.open, self._in_round = OpenStep(), set()
        self.clock.advance()
        self.gate()

    def finish(self, status: str) -> None:
        """Close what is open: the training is over, well (`finished`) or not."""
        self.activations.end_evaluation()
        if self._pending and not self.attempts and self.parameters.changed():
            self._step_by_hand()
        if status != "finished":  # the forward that failed is what one will want to see
            self._pending.append(self.activations.fold())
        left = any(len(micro.site) for micro in self._pending)
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
