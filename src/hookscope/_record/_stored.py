"""A run too large for memory: what is asked of it is read from its files, a column and a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .._core._errors import RunError
from .._core._site import Site
from .._core._stats import COLUMNS
from ._columns import Rows
from ._digest import ALL, KEPT_ROWS, Digest, Digesting, Index, rows_at
from ._held import window
from ._per_rank import gaps
from ._ranktables import RankTables
from ._scan import Columns, Extent, scan, whole_bytes
from ._series import Steps
from ._shares import Shares
from ._spread import Spread, spread_of

MOST_ROWS = 20_000_000  # that are put together in memory: 1.8 GB
_MADE_OF = {
    **dict.fromkeys(("count", "nan", "inf", "nonfinite"), ()),
    **dict.fromkeys(("mean", "sum"), ("sum",)),
    "std": ("sum", "sumsq"),
    **dict.fromkeys(("rms", "l2"), ("sumsq",)),
    **dict.fromkeys(("min", "max", "absmax"), ("min", "max")),
    **dict.fromkeys(("zeros", "sparsity"), ("zeros",)),
}
_ALWAYS = ("step", "micro", "site", "call", "count", "nan", "inf")


class Stored:
    """The files of many ranks. One pass over all of them, made when something about all sites is asked for, is kept as a `Digest`."""

    def __init__(self, extents: Sequence[Extent], tables: RankTables, shares: Shares) -> None:
        self.extents = tuple(extents)
        self._tables = tables
        self._shares = shares
        self._digest: Digest | None = None
        self._latest: tuple[int, Rows | None] | None = None

    @property
    def digest(self) -> Digest:
        """What one pass over all files has found."""
        if self._digest is None:
            self._digest = Digesting(self._shares, self._tables).run(self.extents)
        return self._digest

    @cached_property
    def _index(self) -> Index:
        """The steps of each batch of each file."""
        if self._digest is not None:
            return self._digest.index
        found: Index = {extent: [] for extent in self.extents}
        for extent, columns in scan(self.extents, ("step",)):
            found[extent].append(np.unique(columns["step"]))
        return found

    @cached_property
    def _taken(self) -> dict[int, Steps]:
        """By rank, its steps."""
        found: dict[int, list[Steps]] = {}
        for extent, batches in self._index.items():
            found.setdefault(extent.rank, []).extend(batches)
        return {rank: np.unique(np.concatenate(batches)) for rank, batches in sorted(found.items()) if batches}

    @property
    def steps(self) -> Steps:
        """The recorded steps, sorted."""
        if self._digest is not None:
            return self._digest.steps
        return np.unique(np.concatenate([*self._taken.values(), np.zeros(0, np.int64)]))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have recorded anything."""
        return self._digest.ranks if self._digest is not None else tuple(self._taken)

    @property
    def uneven(self) -> Steps:
        """Steps that some rank has left out."""
        return self._digest.uneven if self._digest is not None else gaps(self.steps, list(self._taken.values()))

    @cached_property
    def counted(self) -> Rows:
        """One row a step, micro-batch, site and call, merged over ranks."""
        return self.digest.cells.take(np.flatnonzero(self.digest.whole))

    def counted_of(self, site: Site, quantity: str) -> Rows:
        """Those of one site; read for themselves, with no more columns than the quantity is made of, where no pass was made yet."""
        if self._digest is not None:
            return self.counted.take(np.flatnonzero(self.counted.site == site.id))
        names = (*_ALWAYS, *_MADE_OF.get(quantity, COLUMNS[3:]))
        if self._shares.groups:  # ranks of which the same is told by all of what they say
            names = ALL
        return self._shares.counted(self._of(site.id, self.extents, [name for name in ALL if name in names]))

    def rows(self, first: int | None, last: int | None) -> Rows:
        """All rows from one step to another, where memory can hold them."""
        found = self._read(first, last, MOST_ROWS)
        if found is None:
            raise RunError(
                f"the rows asked for are more than {MOST_ROWS:,}, which memory may not hold: ask for fewer steps, for one rank "
                "(run.rank(0)), for a series of one site (run[...], run.per_rank(...)), or write all of them with run.to_parquet(...)"
            )
        return found.in_order()

    def overview(self, first: int | None, last: int | None) -> Rows:
        """Cells of merged ranks; where only some other rank's copy of a tensor is not finite, that is noted in them."""
        cells = self._marked
        return cells.take(window(cells.step, first, last))

    @cached_property
    def _marked(self) -> Rows:
        digest = self.digest
        hidden = np.flatnonzero(digest.bad & ~(digest.cells.stats[:, 1:3] > 0).any(axis=1))
        stats = digest.cells.stats.copy()
        stats[hidden, 1:3] = digest.high[hidden, 1:3]
        stats[hidden[~(stats[hidden, 1:3] > 0).any(axis=1)], 1] = 1.0
        return replace(digest.cells, stats=stats)

    def rows_of(self, site: Site, first: int | None = None, last: int | None = None) -> Rows:
        """All rows of one site."""
        if self._digest is not None and site.id in self._digest.kept_sites:
            kept = self._digest.kept
            inside = (first is None or kept.step >= first) & (last is None or kept.step <= last)
            return kept.take(np.flatnonzero((kept.site == site.id) & inside))
        if first is not None and first == last and (at := self._at(first)) is not None:
            return at.take(np.flatnonzero(at.site == site.id))
        extents = self.extents if first is None and last is None else self._between(first, last)
        found = self._of(site.id, extents, ALL)
        inside = (first is None or found.step >= first) & (last is None or found.step <= last)
        return found.take(np.flatnonzero(inside)) if first is not None or last is not None else found

    def spread(self, site: Site) -> Spread:
        """How far ranks lie apart at a site that they hold in common."""
        return self.digest.spread(site.id) if self._shares.alone[site.id] else spread_of(self.rows_of(site))

    def squares(self, sites: Sequence[Site]) -> NDArray[np.float64]:  # noqa: ARG002  # the pass is made before anybody asks
        """[step, rank] the sum of squares over these sites, which are the ranks' own gradients."""
        return self.digest.squares

    def presence(self, sites: Sequence[Site]) -> NDArray[np.int64]:
        """[rank, site] how many rows there are."""
        return self.digest.presence[:, [site.id for site in sites]]

    def portions(self) -> Iterator[Rows]:
        """All rows, a batch at a time."""
        yield Rows.empty()
        for extent, columns in scan(self.extents, ALL):
            yield self._within(columns, extent.rank, None, None)

    def of_rank(self, rank: int) -> Rows:
        """All rows of one rank."""
        mine = [extent for extent in self.extents if extent.rank == rank]
        return Rows.joined([self._within(columns, rank, None, None) for _, columns in scan(mine, ALL)])

    @cached_property
    def unread(self) -> int:
        """Bytes that form no whole batch."""
        return sum(extent.bytes - whole_bytes(extent) for extent in self.extents)

    def _at(self, step: int) -> Rows | None:
        """All rows of one step, kept until another one is asked for: who asks for one site of it asks for others; None if they are many."""
        if self._latest is None or self._latest[0] != step:
            self._latest = step, self._read(step, step, KEPT_ROWS)
        return self._latest[1]

    def _read(self, first: int | None, last: int | None, most: int) -> Rows | None:
        """The rows from one step to another, rank by rank; None if they are more than so many."""
        parts, held = [], 0
        for extent, columns in scan(self._between(first, last), ALL):
            parts.append(self._within(columns, extent.rank, first, last))
            held += len(parts[-1])
            if held > most:
                return None
        return Rows.joined(parts)

    def _between(self, first: int | None, last: int | None) -> list[Extent]:
        """The files that hold any of these steps, with the batches that do."""
        low, high = -np.inf if first is None else first, np.inf if last is None else last
        found = []
        for extent, batches in self._index.items():
            places = tuple(i for i, steps in enumerate(batches) if len(steps) and steps[0] <= high and steps[-1] >= low)
            if places:
                found.append(replace(extent, batches=places))
        return found

    def _of(self, site: int, extents: Sequence[Extent], names: Sequence[str]) -> Rows:
        parts = []
        for extent, columns in scan(extents, names):
            own = self._tables.own_number(site, extent.rank)
            found = rows_at(columns, np.flatnonzero(columns["site"] == own), extent.rank)
            parts.append(replace(found, site=np.full(len(found), site, np.int32)))
        return Rows.joined(parts)

    def _within(self, columns: Columns, rank: int, first: int | None, last: int | None) -> Rows:
        inside = np.ones(len(columns["step"]), bool)
        if first is not None:
            inside &= columns["step"] >= first
        if last is not None:
            inside &= columns["step"] <= last
        return self._tables.numbered(rows_at(columns, np.flatnonzero(inside), rank), rank)
