"""Stats of ranks added up as they come, lowest rank first, each element once: what `Shares.counted` does, without holding all rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core._stats import COLUMNS, EMPTY, WIDTH
from ._columns import Mask
from ._numbering import Batch
from ._scan import Columns
from ._shares import ITS_OWN, Shares
from ._spread import Bounds

Stat = NDArray[np.float64]
_MERGED: tuple[np.ufunc, ...] = (*[np.add] * 6, np.minimum, np.maximum)
_ODD = np.uint64(0x9E3779B97F4A7C15)


class Adding:
    """`add` takes the batches of all ranks, in the order of ranks; `merged` and `whole` are what they come to."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._stats = [np.zeros(0) for _ in COLUMNS]
        self._site = np.zeros(0, np.int32)
        self._filled = np.zeros(0, np.int32)  # parts with an element that were met, by cell
        self._first_bit = np.zeros(0, np.int64)
        self._met = np.zeros(0, bool)  # by cell and part
        self._low: Bounds | None = None
        self._high: Bounds | None = None
        self._groups = {rank: number for number, members in enumerate(shares.groups) for rank in members}
        self._prints: dict[tuple[int, int, int], list[NDArray[np.uint64]]] = {}
        self.copies = np.zeros(0, np.int64)  # by cell, ranks that have what is held in common
        self.bad = np.zeros(0, bool)  # by cell, whether any rank has a NaN or Inf there, counted or not

    def add(self, batch: Batch, columns: Columns, rank: int, cells: int) -> None:
        """The rows of one batch; `cells` have been named so far."""
        self._reach(batch, cells)
        shares, site = self._shares, batch.key[1]
        row = shares.place(rank)
        part = np.where(columns["count"] < shares.elements[row, site], ITS_OWN, shares.parts[row, site])
        own, held = np.flatnonzero(part == ITS_OWN), np.flatnonzero(part != ITS_OWN)
        first = self._once(batch, held, part[held], row)
        if rank in self._groups:
            own = own[~self._echoes(batch, columns, own, self._groups[rank])]
        which = np.sort(np.concatenate([own, held[first]]))
        self._pour(batch, columns, which, shares.weights[row, site[which]])
        copies = held[~first]
        _count(self.copies, batch.cells[held], distinct=batch.distinct)
        if len(copies):
            self._compare(batch.cells[copies], columns, copies)
        self._note_bad(batch.cells, columns)

    def merged(self) -> NDArray[np.float64]:
        """[cell, stat], of all parts that were met."""
        return np.stack(self._stats, axis=1)

    def whole(self) -> Mask:
        """By cell, whether no part of it is missing, so that its stats are those of the tensor."""
        shared = self.copies > 0
        return ~shared | (self._filled >= self._shares.needed[self._site])

    def bounds(self) -> tuple[Bounds, Bounds]:
        """[cell, stat] the lowest and the highest of any rank, where ranks hold one tensor in common."""
        merged = self.merged()
        if self._low is None or self._high is None:
            return merged, merged
        return np.fmin(self._low, merged), np.fmax(self._high, merged)

    def _once(self, batch: Batch, held: NDArray[np.intp], part: NDArray[np.int32], row: int) -> Mask:
        """Which of these rows are the first of their part in their cell."""
        cells = batch.cells[held]
        bits = self._first_bit[cells] + part
        first: Mask = ~self._met[bits]
        if not batch.distinct:
            alone = np.zeros(len(bits), bool)
            alone[np.unique(bits, return_index=True)[1]] = True
            first &= alone
        self._met[bits] = True
        filled = first & self._shares.filled[row, batch.key[1][held]]
        _count(self._filled, cells[filled], distinct=batch.distinct)
        return first

    def _pour(self, batch: Batch, columns: Columns, which: NDArray[np.intp], weight: Stat) -> None:
        cells = batch.cells[which]
        heavy = bool((weight != 1.0).any())
        for i, (name, merge) in enumerate(zip(COLUMNS, _MERGED, strict=True)):
            values = columns[name][which].astype(np.float64, copy=False)
            if heavy and i < 6:
                values = values * weight
            if batch.distinct:
                self._stats[i][cells] = merge(self._stats[i][cells], values)
            else:
                merge.at(self._stats[i], cells, values)

    def _compare(self, cells: NDArray[np.intp], columns: Columns, copies: NDArray[np.intp]) -> None:
        """Remember how far copies are from those of the lowest rank; parts of a tensor are no copies of one another."""
        alone = self._shares.alone[self._site[cells]]
        cells, copies = cells[alone], copies[alone]
        unlike = np.zeros(len(cells), bool)
        for i, name in enumerate(COLUMNS):
            unlike |= self._stats[i][cells] != columns[name][copies]
        if not unlike.any():
            return
        if self._low is None or self._high is None or len(self._low) < len(self._site):
            self._low, self._high = (_longer(bounds, len(self._site)) for bounds in (self._low, self._high))
        cells, copies = cells[unlike], copies[unlike]
        theirs = np.stack([columns[name][copies] for name in COLUMNS], axis=1).astype(np.float64)
        self._low[cells] = np.fmin(self._low[cells], theirs)
        self._high[cells] = np.fmax(self._high[cells], theirs)

    def _note_bad(self, cells: NDArray[np.intp], columns: Columns) -> None:
        if columns["nan"].any() or columns["inf"].any():
            self.bad[cells[(columns["nan"] > 0) | (columns["inf"] > 0)]] = True

    def _echoes(self, batch: Batch, columns: Columns, own: NDArray[np.intp], group: int) -> Mask:
        """Rows that repeat to the bit what a lower rank of the same group has; told by 64 bits made of a row's 512."""
        prints = batch.cells[own].astype(np.uint64) * _ODD
        for name in COLUMNS:
            bits = np.ascontiguousarray(columns[name][own]).astype(np.float64).view(np.uint64)
            prints = (prints ^ bits) * _ODD
            prints ^= prints >> np.uint64(29)
        seen = self._prints.setdefault((group, int(batch.steps[0]), int(batch.steps[-1])), [])
        echo: Mask = np.isin(prints, np.concatenate(seen)) if seen else np.zeros(len(own), bool)
        seen.append(prints[~echo])
        return echo

    def _reach(self, batch: Batch, cells: int) -> None:
        """Make room for the cells that this batch has named."""
        before = len(self._site)
        if cells == before:
            return
        site = np.zeros(cells - before, np.int32)
        late = batch.cells >= before
        site[batch.cells[late] - before] = batch.key[1][late]
        grown: Callable[..., NDArray[np.generic]] = lambda old, fill=0: np.append(old, np.full(cells - before, fill, old.dtype))  # noqa: E731
        self._stats = [grown(old, empty) for old, empty in zip(self._stats, EMPTY, strict=True)]  # type: ignore[misc]
        self.copies, self._filled, self.bad = grown(self.copies), grown(self._filled), grown(self.bad)  # type: ignore[assignment]
        parts = self._shares.kinds_of_parts[site]
        self._first_bit = np.append(self._first_bit, len(self._met) + np.cumsum(parts) - parts)
        self._met = np.append(self._met, np.zeros(int(parts.sum()), bool))
        self._site = np.append(self._site, site)


def _count(numbers: NDArray[np.integer[Any]], cells: NDArray[np.intp], *, distinct: bool) -> None:
    if distinct:
        numbers[cells] += 1
    else:
        np.add.at(numbers, cells, 1)


def _longer(bounds: Bounds | None, cells: int) -> Bounds:
    longer = np.full((cells, WIDTH), np.nan)
    if bounds is not None:
        longer[: len(bounds)] = bounds
    return longer
