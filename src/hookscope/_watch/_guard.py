"""Looks at each step before its optimizer uses the gradients, where `on_nonfinite` asks for that, and does what it says."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ._attempt import is_skipping
from ._closures import Closures
from ._models import Models
from ._nonfinite import Nonfinite, all_finite
from ._online import Online
from ._safety import Safety
from ._steps import Steps


class Guard:
    """`begins` comes before an attempt, `evaluated` after each call of its closure, `undo` and `ends` when it is over; the first two may
    raise what is meant to reach the training.
    """

    def __init__(self, nonfinite: Nonfinite, steps: Steps, models: Models, online: Online, safety: Safety) -> None:
        self.nonfinite = nonfinite
        self.steps, self.models, self.online, self.safety = steps, models, online, safety
        self.closures = Closures()
        self.agree: Callable[[bool], bool] = bool  # whether the step is bad, on any rank if ranks speak to each other

    def begins(self, optimizer: torch.optim.Optimizer, *, has_closure: bool) -> None:
        """Before the optimizer does anything."""
        if has_closure:
            self.safety.run("steps", lambda: self.closures.begins(optimizer, self.models.mine(optimizer)))
        else:
            self._look(optimizer)

    def evaluated(self, optimizer: torch.optim.Optimizer) -> None:
        """A closure has brought new gradients."""
        self.closures.calls += 1
        try:
            if self._look(optimizer):
                self.closures.spoiled = True
        except Exception:
            self.closures.spoiled = True
            self.safety.run("steps", self.closures.ends, optimizer)
            raise

    def undo(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer is done: take back what it did in a step with a closure that is to have no effect."""
        if self.closures.can_undo or self.closures.calls:
            self.safety.run("steps", self.closures.ends, optimizer)

    def ends(self) -> None:
        """And everything that was to be read has been read."""
        self.nonfinite.put_back()

    def _look(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the gradients have been withheld."""
        mine = self.models.mine(optimizer)
        skipped = self.steps.skipped  # for another optimizer: a bad loss was that one's
        if not mine or is_skipping(optimizer):
            return False
        if not self.agree((self.steps.bad_loss and not skipped) or not all_finite(mine)):
            return False
        now = self.steps.clock.step
        # A line search that is handed zeros beside a NaN loss runs into an error of torch's.
        searches = any(group.get("line_search_fn") for group in optimizer.param_groups)
        withheld = [] if searches and self.closures.can_undo else mine
        acted = self.nonfinite.act(withheld, tuple(f for f in self.online.findings if f.first_step <= now <= f.last_step))
        if acted and not skipped:
            self.safety.run("steps", self.steps.skip, "hookscope")
        return acted
