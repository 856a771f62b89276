"""How far ranks lie apart at a site of which each has a row: the lowest and the highest of each stat in each step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._core._stats import WIDTH
from ._columns import Rows

Bounds = NDArray[np.float64]  # [steps, stats]


@dataclass(frozen=True, slots=True)
class Spread:
    """`ranks[i]` of them have the site at `steps[i]`, with stats from `low[i]` to `high[i]`."""

    steps: NDArray[np.int64]
    ranks: NDArray[np.int64]
    low: Bounds
    high: Bounds


def spread_of(rows: Rows) -> Spread:
    """Of the rows of one site, one a step and rank."""
    order = np.argsort(rows.step, kind="stable")
    step, stats = rows.step[order], rows.stats[order]
    starts = np.flatnonzero(np.append(True, step[1:] != step[:-1])) if len(step) else np.zeros(0, np.intp)
    if not len(starts):
        return Spread(step, step, np.empty((0, WIDTH)), np.empty((0, WIDTH)))
    ranks = np.diff(np.append(starts, len(step)))
    return Spread(step[starts], ranks, np.minimum.reduceat(stats, starts), np.maximum.reduceat(stats, starts))
