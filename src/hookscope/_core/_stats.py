"""The stats of one tensor, and how they merge: exactly, in any order, over calls, micro-batches and ranks.

`count` is the number of elements and `nan`, `inf`, `zeros` how many of them are such. `sum` and `sumsq` run over the finite elements,
`min` and `max` over all that are not NaN (so a -inf mask shows as `min == -inf`). No element at all: min is inf and max is -inf.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]  # [n, 8], columns as below


class Stats(NamedTuple):
    """One row. Counts are whole numbers kept as floats, exact up to 2**53."""

    count: float  # type: ignore[assignment]  # hides tuple.count, for which a row of stats has no use
    nan: float
    inf: float
    zeros: float
    sum: float
    sumsq: float
    min: float
    max: float

    def merge(self, other: Stats) -> Stats:
        """The stats of both tensors taken together."""
        count, nan, inf, zeros, total, squares = (a + b for a, b in zip(self[:6], other[:6], strict=True))
        return Stats(count, nan, inf, zeros, total, squares, min(self.min, other.min), max(self.max, other.max))


COLUMNS = Stats._fields
WIDTH = len(COLUMNS)
EMPTY = Stats(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, float("inf"), float("-inf"))


def merge_groups(rows: Rows, starts: NDArray[np.intp]) -> Rows:
    """Merge consecutive rows: group i runs from `starts[i]` up to `starts[i + 1]` (as in `np.add.reduceat`); no group is empty."""
    merged = np.empty((len(starts), WIDTH))
    if len(starts):
        np.add.reduceat(rows[:, :6], starts, axis=0, out=merged[:, :6])
        merged[:, 6] = np.minimum.reduceat(rows[:, 6], starts)
        merged[:, 7] = np.maximum.reduceat(rows[:, 7], starts)
    return merged
