"""The stats of two runs side by side: common sites by name, common steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._core._quantity import quantity as derive
from .._core._site import Site
from .._core._stats import WIDTH
from .._record import Run
from .._record._series import merge_cells

BLOCK = 64  # sites at a time: 10,000 steps of them are 40 MB a run
CLOCKS = ("seconds",)  # scalars that tell of the machine and not of the training
Cube = NDArray[np.float64]  # [steps, sites, stats], NaN where nothing was recorded


@dataclass(frozen=True, slots=True)
class Aligned:
    """Common steps, and the common sites as pairs, in a's order."""

    a: Run
    b: Run
    steps: NDArray[np.int64]
    pairs: tuple[tuple[Site, Site], ...]

    def blocks(self) -> Iterator[tuple[Sequence[tuple[Site, Site]], Cube, Cube]]:
        """The pairs, some at a time, with the stats of both."""
        for start in range(0, len(self.pairs), BLOCK):
            pairs = self.pairs[start : start + BLOCK]
            yield pairs, self._cube(self.a, [a for a, _ in pairs]), self._cube(self.b, [b for _, b in pairs])

    def _cube(self, run: Run, sites: list[Site]) -> Cube:
        rows = run.counted()
        kept = rows.take(np.flatnonzero(np.isin(rows.step, self.steps) & np.isin(rows.site, [site.id for site in sites])))
        cells = merge_cells(kept, sites, self.steps)
        cube = np.full((len(self.steps), len(sites), WIDTH), np.nan)
        cube[cells.step, cells.site] = cells.stats
        return cube


def align(a: Run, b: Run, sites: tuple[Sequence[Site], Sequence[Site]]) -> Aligned:
    """Of these sites, those in both."""
    theirs = {site.name: site for site in sites[1]}
    pairs = tuple((site, theirs[site.name]) for site in sites[0] if site.name in theirs)
    return Aligned(a, b, np.intersect1d(a.steps, b.steps), pairs)


def series(cube: Cube, column: int, quantity: str) -> NDArray[np.float64]:
    """One site's quantity a step; NaN or Inf where an element was, and NaN where nothing was recorded."""
    stats = cube[:, column]
    with np.errstate(all="ignore"):
        values = derive(quantity, stats)
    return np.where(stats[:, 1] > 0, np.nan, np.where(stats[:, 2] > 0, np.inf, values))
