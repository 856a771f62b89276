"""What is kept of a run of many ranks after one pass over all of it: ranks merged, and what of each is asked for beside the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .._core._stats import COLUMNS
from ._adding import Adding
from ._columns import PLACES, Mask, Rows
from ._numbering import Batch, Numbering
from ._per_rank import gaps
from ._ranktables import RankTables
from ._scan import Columns, Extent, scan
from ._series import Steps
from ._shares import Shares
from ._spread import Spread

ALL = ("step", *PLACES, *COLUMNS)
KEPT_ROWS = 4_000_000  # of the losses and batches of each rank: 350 MB
_KEPT_KINDS = ("loss", "input")

Index = dict[Extent, list[Steps]]  # by file, the steps of each of its batches


@dataclass(frozen=True)
class Digest:
    """`cells` is sorted by step, micro-batch and execution, one row a step, micro-batch, site and call; `whole` tells of which no part is
    missing, `bad` where any rank has a NaN or Inf. `squares` is [step, rank] of the ranks' own gradients, `presence` [rank, site]. `kept`
    has all rows of the sites in `kept_sites`, `index` the steps of each batch.
    """

    steps: Steps
    ranks: tuple[int, ...]
    uneven: Steps
    cells: Rows
    whole: Mask
    bad: Mask
    copies: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    squares: NDArray[np.float64]
    presence: NDArray[np.int64]
    kept: Rows
    kept_sites: frozenset[int]
    index: Index

    def spread(self, site: int) -> Spread:
        """How far ranks lie apart at a site that they hold in common."""
        at = np.flatnonzero((self.cells.site == site) & (self.cells.call == 0))
        return Spread(self.cells.step[at], self.copies[at], self.low[at], self.high[at])


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Rows of a batch, and of all like it: the ranks' own gradients, and those of which every rank's are kept."""

    batch: Batch
    own: NDArray[np.intp]
    kept: NDArray[np.intp]


class Digesting:
    """The pass under way."""

    def __init__(self, shares: Shares, tables: RankTables) -> None:
        self._shares, self._tables = shares, tables
        self._numbering, self._adding = Numbering(shares.size), Adding(shares)
        self._own = np.zeros(shares.size, bool)
        self._own[[s.id for s in shares.sites if s.kind == "param_grad" and s.label == "local"]] = True
        self._keeps = np.zeros(shares.size, bool)
        self._keeps[[s.id for s in shares.sites if s.kind in _KEPT_KINDS]] = True
        self._kept: list[Rows] = []
        self._kept_rows = 0
        self._wanted: dict[tuple[int, int], _Wanted] = {}
        self._presence: dict[int, NDArray[np.int64]] = {}
        self._index: Index = {}
        self._squares: dict[int, list[tuple[Steps, NDArray[np.float64]]]] = {}

    def run(self, extents: Sequence[Extent]) -> Digest:
        """Over all files."""
        self._index = {extent: [] for extent in extents}
        for extent, columns in scan(extents, ALL):
            if len(columns["step"]):
                self._take({**columns, "site": self._tables.renumbered(columns["site"], extent.rank)}, extent)
            else:
                self._index[extent].append(columns["step"])
        return self._digest()

    def _take(self, columns: Columns, extent: Extent) -> None:
        rank = extent.rank
        batch = self._numbering.batch(columns, rank)
        self._index[extent].append(batch.steps)
        self._adding.add(batch, columns, rank, self._numbering.cells)
        self._presence[rank] = self._presence.get(rank, 0) + batch.sites
        wanted = self._wanted.get(batch.like)
        if wanted is None or wanted.batch is not batch:
            wanted = _Wanted(batch, *(np.flatnonzero(of[batch.key[1]]) for of in (self._own, self._keeps)))
            self._wanted[batch.like] = wanted
        own = wanted.own
        sums = np.bincount(batch.step_at[own], columns["sumsq"][own], minlength=len(batch.steps)).astype(np.float64)
        self._squares.setdefault(rank, []).append((batch.steps, sums))
        self._keep(columns, rank, wanted.kept)

    def _keep(self, columns: Columns, rank: int, which: NDArray[np.intp]) -> None:
        if self._keeps.any():
            self._kept.append(rows_at(columns, which, rank))
            self._kept_rows += len(self._kept[-1])
            if self._kept_rows > KEPT_ROWS:
                self._kept, self._keeps = [], np.zeros_like(self._keeps)

    def _digest(self) -> Digest:
        self._adding.settle()
        places = self._numbering.places()
        order = np.lexsort((places.seq, places.micro, places.step))
        low, high = self._adding.bounds()
        ranks = tuple(sorted(self._presence))
        taken = [np.unique(np.concatenate([steps for steps, _ in self._squares[rank]])) for rank in ranks]
        steps = np.unique(np.concatenate(taken)) if taken else np.zeros(0, np.int64)
        return Digest(
            steps=steps,
            ranks=ranks,
            uneven=gaps(steps, taken),
            cells=replace(places, stats=self._adding.merged()).take(order),
            whole=self._adding.whole()[order],
            bad=self._adding.bad[order],
            copies=self._adding.copies[order],
            low=low[order],
            high=high[order],
            squares=self._own_squares(steps, ranks),
            presence=np.stack([self._presence[rank] for rank in ranks]) if ranks else np.zeros((0, self._shares.size), np.int64),
            kept=Rows.joined(self._kept),
            kept_sites=frozenset(np.flatnonzero(self._keeps).tolist()),
            index=self._index,
        )

    def _own_squares(self, steps: Steps, ranks: Sequence[int]) -> NDArray[np.float64]:
        squares = np.zeros((len(steps), len(ranks)))
        for column, rank in enumerate(ranks):
            for at, sums in self._squares[rank]:
                squares[np.searchsorted(steps, at), column] += sums
        return squares


def rows_at(columns: Columns, which: NDArray[np.intp], rank: int) -> Rows:
    """Some rows of a batch; stats that were not read are zero."""
    stats = np.zeros((len(which), len(COLUMNS)))
    for i, name in enumerate(COLUMNS):
        if name in columns:
            stats[:, i] = columns[name][which]
    step, micro, site, call = (columns[name][which] for name in ("step", "micro", "site", "call"))
    seq = columns["seq"][which] if "seq" in columns else np.full(len(which), -1, np.int32)
    return Rows(step, np.full(len(which), rank, np.int32), micro, site, call, seq, stats)
