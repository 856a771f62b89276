"""Names for what there may be several of in one step: `clip` for the first optimizer that comes by, then `clip.1`, `clip.2`, ..."""

from __future__ import annotations

import weakref

import torch

Holder = torch.optim.Optimizer | torch.Tensor


class Numbered:
    """A holder keeps its name as long as it lives; then the next newcomer gets that."""

    def __init__(self, stem: str) -> None:
        self.stem = stem
        self._numbers: dict[tuple[int, int], int] = {}
        self._holders: list[weakref.ref[Holder]] = []

    def name(self, holder: Holder, part: int = 0) -> str:
        """The name for `holder`, or for one of its parts."""
        number = self._numbers.get((id(holder), part))
        if number is None or self._holders[number]() is not holder:
            number = next((i for i, ref in enumerate(self._holders) if ref() is None), len(self._holders))
            self._holders[number : number + 1] = [weakref.ref(holder)]
            self._numbers[id(holder), part] = number
        return f"{self.stem}.{number}" if number else self.stem
