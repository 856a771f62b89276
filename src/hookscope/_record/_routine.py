"""A batch like one that was taken before, of a rank that holds the same: the quick way, which most batches of a thousand ranks go."""

from __future__ import annotations

import numpy as np

from .._core._stats import COLUMNS, EMPTY
from ._columns import Mask
from ._scan import Columns

MERGED: tuple[np.ufunc, ...] = (*[np.add] * 6, np.minimum, np.maximum)


class Routine:
    """Adds up the rows at `own` of each batch, in `sums`, and sees to it that those `alone`, copies of what ranks hold in common, are those
    of the first batch; `ranks` counts the batches.
    """

    def __init__(self, elements: np.ndarray[tuple[int], np.dtype[np.float64]], own: Mask, alone: Mask, first: Columns) -> None:
        self._elements = elements
        self.own, self._alone = np.flatnonzero(own), np.flatnonzero(alone)
        self.sums = [np.full(len(self.own), empty) for empty in EMPTY]
        self._first = [first[name][self._alone] for name in COLUMNS]
        self.ranks = 0

    def add(self, columns: Columns) -> bool:
        """Take a batch; False, and nothing was taken, if it has anything that is not as it was."""
        if (columns["count"] < self._elements).any():
            return False
        for name, first in zip(COLUMNS, self._first, strict=True):
            if not (columns[name].take(self._alone) == first).all():
                return False
        for name, merge, sums in zip(COLUMNS, MERGED, self.sums, strict=True):
            if name not in COLUMNS[1:4] or columns[name].any():
                merge(sums, columns[name].take(self.own), out=sums)
        self.ranks += 1
        return True
