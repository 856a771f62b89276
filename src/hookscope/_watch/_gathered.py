"""Stats of parameters or gradients, gathered and read at once."""

from __future__ import annotations

import numpy as np
import torch

from .._core._stats import WIDTH, Rows
from .._stats import Batch, Listed, Row
from .._taps._parts import is_partial, local
from ._store import Store


class Gathered:
    """Each tensor is added with a number to know it by, and with a place for a row of its own, should the kernel not be able to read it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.batch = Batch()
        self.listed = Listed()
        self.numbers: list[int] = []
        self.total = (0.0, 0.0)  # as of a batch
        self._others: list[tuple[int, Row]] = []  # place among all, and row, of those that are not in the batch

    def add(self, number: int, tensor: torch.Tensor, rows: dict[str, Row], kind: str) -> bool:
        """Whether there is anything to read."""
        if is_partial(tensor):
            return False
        tensor = local(tensor)
        if not self.batch.add(tensor):
            if kind not in rows or rows[kind].view.device != tensor.device:
                rows[kind] = self.store.row(tensor)
            if not self.listed.add(rows[kind], tensor):
                return False
            self._others.append((len(self.numbers), rows[kind]))
        self.numbers.append(number)
        return True

    def read(self) -> Rows:
        """The rows of all that was added, in that order."""
        rows = self.batch.read()
        self.total = self.batch.total
        if not self._others:
            return rows
        self.listed.write()
        everything = np.empty((len(self.numbers), WIDTH))
        there = [place for place, _ in self._others]
        everything[np.delete(np.arange(len(everything)), there)] = rows
        everything[there] = self.store.read([row for _, row in self._others])
        self.total = float(everything[:, 1:3].sum()), float(everything[:, 5].sum())
        return everything
