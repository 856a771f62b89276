"""The learning rates of optimizers: `lr` for the first parameter group that comes by, `lr.1`, `lr.2`, ... for the others."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ._numbered import Numbered


class Rates:
    """A group keeps its name as long as its optimizer lives."""

    def __init__(self) -> None:
        self._names = Numbered("lr")

    def of(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, float]]:
        """Name and rate of every group that has one; a rate that sits on another device than the CPU is not waited for."""
        for i, group in enumerate(optimizer.param_groups):
            name, rate = self._names.name(optimizer, i), group.get("lr")
            if isinstance(rate, (int, float)) or (isinstance(rate, torch.Tensor) and rate.is_cpu):
                yield name, float(rate)
