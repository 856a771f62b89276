"""A batch like one that was taken before, of a rank that holds the same: the quick way, which most batches of a thousand ranks go."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .._core._stats import COLUMNS, EMPTY
from ._columns import Mask
from ._scan import Columns

MERGED: tuple[np.ufunc, ...] = (*[np.add] * 6, np.minimum, np.maximum)
COUNTED = COLUMNS[1:4]  # which are zero nearly everywhere


class Routine:
    """Adds up the rows at `own` of each batch, in `sums`, and sees to it that those `alone`, copies of what ranks hold in common, are those
    of the first batch; `ranks` counts the batches.

    Whole columns are compared and added, those alone with the others: picking rows out of them takes longer than all the rest.
    """

    def __init__(self, elements: NDArray[np.float64], own: Mask, alone: Mask, first: Columns) -> None:
        self._elements, self._first, self.own, self._alone = elements, first, np.flatnonzero(own), alone
        self._none = {name: not first[name][alone].any() for name in COUNTED}
        self._gathered = [np.full(len(own), empty) for empty in EMPTY]
        self.ranks = self._alike = 0  # batches, and of these those with the counts of the first

    def add(self, columns: Columns) -> bool:
        """Take a batch; False, and nothing was taken, if it has anything that is not as it was."""
        alike = np.array_equal(columns["count"], self._first["count"])
        if not alike and ((columns["count"] < self._elements).any() or self._differs("count", columns)):
            return False
        empty = {name for name in COUNTED if not np.count_nonzero(columns[name])}
        if any(not self._none[name] if name in empty else self._differs(name, columns) for name in COLUMNS[1:]):
            return False
        self.ranks += 1
        self._alike += alike
        with np.errstate(over="ignore", invalid="ignore"):  # of rows that are alone, whose sums nobody asks for
            for name, merge, gathered in zip(COLUMNS, MERGED, self._gathered, strict=True):
                if name not in empty and not (alike and name == "count"):
                    merge(gathered, columns[name], out=gathered)
        return True

    def sums(self) -> list[NDArray[np.float64]]:
        """What the rows at `own` have come to, by stat."""
        found = [gathered[self.own] for gathered in self._gathered]
        found[0] += self._first["count"][self.own] * float(self._alike)
        return found

    def _differs(self, name: str, columns: Columns) -> bool:
        differs = columns[name] != self._first[name]
        differs &= self._alone
        return bool(differs.any())
