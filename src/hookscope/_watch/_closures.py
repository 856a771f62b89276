"""Steps with a closure: a bad evaluation may come after good ones have moved the weights; these are put back to where the step began."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


class Closures:
    """`begins` and `ends` surround a step; if it was `spoiled` in between, it has no effect on weights or on the optimizer's state."""

    def __init__(self) -> None:
        self.calls = 0
        self.spoiled = False
        self._single: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()  # those that call it once, before they change anything
        self._before: tuple[list[tuple[nn.Parameter, torch.Tensor]], dict[torch.Tensor, Any]] | None = None

    def begins(self, optimizer: torch.optim.Optimizer, mine: Sequence[nn.Parameter]) -> None:
        """Remember where it begins, unless its closure is known to be called once."""
        self.calls, self.spoiled = 0, False
        if optimizer not in self._single:
            weights = [(p, p.detach().clone()) for p in mine]
            self._before = weights, {p: copy.deepcopy(state) for p, state in optimizer.state.items()}

    @property
    def can_undo(self) -> bool:
        """Whether a step is under way whose beginning is remembered."""
        return self._before is not None

    def ends(self, optimizer: torch.optim.Optimizer) -> None:
        """Put back what a spoiled step has changed."""
        before, self._before = self._before, None
        if self.spoiled and before is not None:
            for parameter, value in before[0]:
                parameter.detach().copy_(value)
            optimizer.state.clear()
            optimizer.state.update(before[1])
        elif self.calls == 1 and not isinstance(optimizer, torch.optim.LBFGS):  # which may need one evaluation now, and more the next time
            self._single.add(optimizer)
        else:
            self._single.discard(optimizer)
        self.calls, self.spoiled = 0, False
