"""The learning rates of optimizers: `lr` for the first parameter group that comes by, `lr.1`, `lr.2`, ... for the others."""

from __future__ import annotations

from collections.abc import Iterator

import torch


class Rates:
    """A group keeps its name as long as its optimizer lives."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, int], str] = {}

    def of(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, float]]:
        """Name and rate of every group that has one; a rate that sits on another device than the CPU is not waited for."""
        for i, group in enumerate(optimizer.param_groups):
            name = self._names.setdefault((id(optimizer), i), f"lr.{len(self._names)}" if self._names else "lr")
            rate = group.get("lr")
            if isinstance(rate, (int, float)) or (isinstance(rate, torch.Tensor) and rate.is_cpu):
                yield name, float(rate)
