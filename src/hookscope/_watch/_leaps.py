"""Values that are suddenly far larger, or far smaller, than any the same site has shown before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core._site import Site
from ._tap import MicroRows

LEAP = 1e3  # times the largest magnitude so far, or less than the smallest one by as much
SEEN = 2  # micro-batches that a site must have been seen in before it can leap
SETTLED = 20  # and before it can fall: a unit that is silent now and then is none that has died


class Leaps:
    """The largest and the smallest magnitude (of the largest element, where it is finite and not 0) of each site so far."""

    def __init__(self) -> None:
        self._largest, self._smallest = np.zeros(0), np.zeros(0)
        self._seen, self._silent = np.zeros(0, np.int64), np.zeros(0, bool)
        self.usual = np.zeros(0)  # what the rows of the last micro-batch are compared with

    def among(self, micro: MicroRows) -> NDArray[np.float64]:
        """How many times larger than ever the rows of this micro-batch are; a share of the smallest ever, below 1, for those that have
        fallen; NaN for all others. It is one of those before from now on.
        """
        if not len(micro.site):
            return np.zeros(0)
        with np.errstate(invalid="ignore"):
            size = np.nan_to_num(np.maximum(np.abs(micro.stats[:, 6]), np.abs(micro.stats[:, 7])), posinf=0.0)
        self._grow(int(micro.site.max()) + 1)
        largest, smallest, seen = self._largest[micro.site], self._smallest[micro.site], self._seen[micro.site]
        bad = micro.stats[:, 1:3].any(axis=1)
        leapt: NDArray[Any] = (size > LEAP * largest) & (largest > 0) & (seen >= SEEN)
        settled = np.isfinite(smallest) & (seen >= SETTLED) & ~self._silent[micro.site] & ~bad
        fallen: NDArray[Any] = (size * LEAP < smallest) & settled
        self.usual = np.where(fallen, smallest, largest)
        times: NDArray[np.float64] = np.full(len(size), np.nan)
        np.divide(size, largest, out=times, where=leapt)
        np.divide(size, smallest, out=times, where=fallen)
        np.maximum.at(self._largest, micro.site, size)
        np.minimum.at(self._smallest, micro.site, np.where((size > 0) & ~fallen, size, np.inf))
        self._silent[micro.site[size == 0]] = True
        self._seen[micro.site] = self._seen[micro.site] + 1  # once, however many calls there are
        return times

    def _grow(self, sites: int) -> None:
        if (more := sites - len(self._largest)) > 0:
            self._largest = np.concatenate([self._largest, np.zeros(more)])
            self._smallest = np.concatenate([self._smallest, np.full(more, np.inf)])
            self._seen = np.concatenate([self._seen, np.zeros(more, np.int64)])
            self._silent = np.concatenate([self._silent, np.zeros(more, bool)])


def leap_event(site: Site, times: float, usual: float, row: NDArray[np.float64]) -> dict[str, Any]:
    """What is noted of the row at which it begins: where, how large the largest element is, what it was at most (of a fall: at least)
    before, and how many times that it is.
    """
    value = max(abs(float(row[6])), abs(float(row[7])))
    where = {"site": site.name, "module": site.full_module, "kind": site.kind, "path": site.path}
    return {"event": "leap", **where, "value": value, "usual": float(usual), "times": float(times)}


def first_of(times: NDArray[np.float64], micro: MicroRows, sites: Sequence[Site]) -> int | None:
    """The position of the row at which it begins: the earliest in the forward, whose upstream neighbours are as ever, else the loss, else
    the latest output whose gradient has leapt, and so the first in the backward.
    """
    rows = np.flatnonzero(times > 1)
    rows = rows if len(rows) else np.flatnonzero(times < 1)
    kinds = np.array([sites[micro.site[i]].kind for i in rows] or ["none"])
    for kind, latest in ((("input", "output"), False), (("loss",), False), (("output_grad",), True)):
        if len(among := rows[np.isin(kinds, kind)] if len(rows) else rows):
            order = [(int(micro.seq[i]), sites[micro.site[i]].kind != "input") for i in among]
            return int(among[(max if latest else min)(range(len(among)), key=order.__getitem__)])
    return None
