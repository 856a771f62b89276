"""Values that are suddenly far larger than any the same site has shown before."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._tap import MicroRows

LEAP = 1e3  # times the largest magnitude so far
SEEN = 2  # micro-batches that a site must have been seen in


class Leaps:
    """The largest finite magnitude of each site so far."""

    def __init__(self) -> None:
        self._largest = np.zeros(0)
        self._seen = np.zeros(0, np.int64)

    def among(self, micro: MicroRows) -> NDArray[np.float64]:
        """How many times larger than ever the rows of this micro-batch are, 0 for those that have not leapt; it is one of those before
        from now on.
        """
        if not len(micro.site):
            return np.zeros(0)
        with np.errstate(invalid="ignore"):
            size = np.nan_to_num(np.maximum(np.abs(micro.stats[:, 6]), np.abs(micro.stats[:, 7])), posinf=0.0)
        self._grow(int(micro.site.max()) + 1)
        usual = self._largest[micro.site]
        leapt: NDArray[Any] = (size > LEAP * usual) & (usual > 0) & (self._seen[micro.site] >= SEEN)
        times: NDArray[np.float64] = np.divide(size, usual, out=np.zeros(len(size)), where=leapt)
        np.maximum.at(self._largest, micro.site, size)
        self._seen[micro.site] = self._seen[micro.site] + 1  # once, however many calls there are
        return times

    def _grow(self, sites: int) -> None:
        if (more := sites - len(self._largest)) > 0:
            self._largest = np.concatenate([self._largest, np.zeros(more)])
            self._seen = np.concatenate([self._seen, np.zeros(more, np.int64)])
