"""The usual end of a step that is left out: after a glance at its only backward the only optimizer steps, and that is all."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch


class Routine:
    """`begins` and `ends` say whether that is how it goes; if so, nobody else need be told. `ready` is set after a glance that was enough.

    Once `begins` has said so, what else may come before `ends` has to look at `under_way` first, and to tell everybody what they missed.
    """

    def __init__(self) -> None:
        self.ready = False
        self.under_way: torch.optim.Optimizer | None = None
        self._usual: weakref.ref[torch.optim.Optimizer] | None = None
        self._sizes: list[int] = []

    def learn(self, optimizer: torch.optim.Optimizer) -> None:
        """A round of this optimizer alone has gone by in the ordinary way."""
        self._usual = weakref.ref(optimizer)
        self._sizes = [len(group["params"]) for group in optimizer.param_groups]

    def unlearn(self) -> None:
        """Something else happens now and then."""
        self._usual, self.ready = None, False

    def begins(self, optimizer: torch.optim.Optimizer, *, has_closure: bool) -> bool:
        """An optimizer is about to step."""
        ready, self.ready = self.ready, False
        if not ready or has_closure or self._usual is None or self._usual() is not optimizer:
            return False
        groups: list[dict[str, Any]] = optimizer.param_groups
        if getattr(optimizer, "found_inf", None) is not None or len(groups) != len(self._sizes):
            return False
        for group, size in zip(groups, self._sizes, strict=True):
            rate = group.get("lr")
            if len(group["params"]) != size or type(rate) is not float or not 0 <= rate < math.inf:
                return False
        self.under_way = optimizer
        return True

    def ends(self, optimizer: torch.optim.Optimizer) -> bool:
        """It has stepped."""
        usual, self.under_way = self.under_way is optimizer, None
        return usual
