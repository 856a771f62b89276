"""Stats of ranks added up as they come, lowest rank first, each element once: what `Shares.counted` does, without holding all rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core._stats import COLUMNS, EMPTY, WIDTH
from ._columns import Mask
from ._numbering import Batch
from ._routine import MERGED, Routine
from ._scan import Columns
from ._shares import ITS_OWN, Shares
from ._spread import Bounds

Stat = NDArray[np.float64]
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(slots=True)
class _Plan:
    """What to do with the rows of a batch, told by row; `routine` once all parts in it were met."""

    batch: Batch
    table: int
    at: slice | NDArray[np.intp]
    elements: Stat
    part: NDArray[np.int32]
    filled: Mask
    alone: Mask
    weight: Stat | None
    routine: Routine | None = None


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
        self._plans: dict[tuple[int, int], _Plan] = {}
        self._prints: dict[tuple[int, int], list[NDArray[np.uint64]]] = {}
        self.copies = np.zeros(0, np.int64)  # by cell, ranks that have what is held in common
        self.bad = np.zeros(0, bool)  # by cell, whether any rank has a NaN or Inf there, counted or not

    def add(self, batch: Batch, columns: Columns, rank: int, cells: int) -> None:
        """The rows of one batch; `cells` have been named so far."""
        self._reach(batch, cells)
        plan = self._plan(batch, rank)
        if np.count_nonzero(columns["nan"]) or np.count_nonzero(columns["inf"]):
            self.bad[batch.cells[(columns["nan"] > 0) | (columns["inf"] > 0)]] = True
        if plan.routine is None or rank in self._groups or not plan.routine.add(columns):
            self._add(plan, columns, rank)

    def _add(self, plan: _Plan, columns: Columns, rank: int) -> None:
        batch, part = plan.batch, plan.part
        if (short := columns["count"] < plan.elements).any():
            part = np.where(short, ITS_OWN, part)
        held = part != ITS_OWN
        counted = ~held
        if rank in self._groups:
            counted &= ~self._echoes(batch, columns, counted, self._groups[rank])
        counted[np.flatnonzero(held)[self._once(batch, held, part, plan.filled)]] = True
        self._pour(plan, columns, counted)
        self._copied(plan, columns, held, held & ~counted)
        if plan.routine is None and part is plan.part and plan.weight is None:
            # Another rank with the same table brings nothing but copies of what is held in common.
            plan.routine = Routine(plan.elements, ~held, held & plan.alone, columns)

    def _plan(self, batch: Batch, rank: int) -> _Plan:
        """What the tables say of the rows of a batch, the same for all ranks with one table."""
        row = self._shares.place(rank)
        known = self._plans.get(batch.like)
        if known is None or known.batch is not batch or known.table != self._shares.kind_of_table[row]:
            if known is not None:
                self._settle(known)
            site, shares = batch.key[1], self._shares
            weight = shares.weights[row, site]
            known = _Plan(
                batch=batch,
                table=int(shares.kind_of_table[row]),
                at=batch.at,
                elements=shares.elements[row, site],
                part=shares.parts[row, site],
                filled=shares.filled[row, site],
                alone=shares.alone[site],
                weight=weight if (weight != 1.0).any() else None,
            )
            self._plans[batch.like] = known
        return known

    def _settle(self, plan: _Plan) -> None:
        """Add what its routine has gathered."""
        if plan.routine is not None:
            cells = plan.batch.cells
            for stats, merge, gathered in zip(self._stats, MERGED, plan.routine.sums(), strict=True):
                merge.at(stats, cells[plan.routine.own], gathered)
            np.add.at(self.copies, cells[plan.part != ITS_OWN], plan.routine.ranks)
            plan.routine = None

    def settle(self) -> None:
        """All batches were given."""
        for plan in self._plans.values():
            self._settle(plan)

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
        low, high = (_longer(bounds, len(merged)) for bounds in (self._low, self._high))
        return np.fmin(low, merged), np.fmax(high, merged)

    def _once(self, batch: Batch, held: Mask, part: NDArray[np.int32], filled: Mask) -> Mask:
        """Of the held rows, which are the first of their part in their cell."""
        cells = batch.cells[held]
        bits = self._first_bit[cells] + part[held]
        first: Mask = ~self._met[bits]
        if not batch.distinct:
            alone = np.zeros(len(bits), bool)
            alone[np.unique(bits, return_index=True)[1]] = True
            first &= alone
        self._met[bits] = True
        _count(self._filled, cells[first & filled[held]], distinct=batch.distinct)
        return first

    def _pour(self, plan: _Plan, columns: Columns, counted: Mask) -> None:
        all_of_it = bool(counted.all())
        for i, (name, merge) in enumerate(zip(COLUMNS, MERGED, strict=True)):
            values = columns[name]
            if i < 4 and not values.any():
                continue
            if plan.weight is not None and i < 6:
                values = values * plan.weight
            if isinstance(plan.at, slice):
                target = self._stats[i][plan.at]
                merge(target, values, out=target, **({} if all_of_it else {"where": counted}))
            else:
                merge.at(self._stats[i], plan.at[counted], values[counted])

    def _copied(self, plan: _Plan, columns: Columns, held: Mask, copies: Mask) -> None:
        """Count who has what is held in common, and remember how far copies are from those of the lowest rank; parts of a tensor are no
        copies of one another.
        """
        _count(self.copies, plan.batch.cells[held], distinct=plan.batch.distinct)
        copies = copies & plan.alone
        unlike = np.zeros(len(copies), bool)
        for i, name in enumerate(COLUMNS if copies.any() else ()):
            unlike |= self._stats[i][plan.at] != columns[name]
        if not (unlike := unlike & copies).any():
            return
        if self._low is None or self._high is None or len(self._low) < len(self._site):
            self._low, self._high = (_longer(bounds, len(self._site)) for bounds in (self._low, self._high))
        cells = plan.batch.cells[unlike]
        theirs = np.stack([columns[name][unlike] for name in COLUMNS], axis=1).astype(np.float64)
        self._low[cells] = np.fmin(self._low[cells], theirs)
        self._high[cells] = np.fmax(self._high[cells], theirs)

    def _echoes(self, batch: Batch, columns: Columns, own: Mask, group: int) -> Mask:
        """Of a rank's own rows those that repeat to the bit what a lower rank of its group has; told by 64 bits made of a row's 512."""
        prints = batch.cells[own].astype(np.uint64) * _ODD
        for name in COLUMNS:
            bits = np.ascontiguousarray(columns[name][own]).astype(np.float64).view(np.uint64)
            prints = (prints ^ bits) * _ODD
            prints ^= prints >> np.uint64(29)
        echo, step_at = np.zeros(len(prints), bool), batch.step_at[own]
        for number, step in enumerate(batch.steps.tolist()):
            here = np.flatnonzero(step_at == number)
            seen = self._prints.setdefault((group, step), [])
            echo[here] = np.isin(prints[here], np.concatenate(seen)) if seen else False
            seen.append(prints[here][~echo[here]])
        echoes = np.zeros(len(own), bool)
        echoes[np.flatnonzero(own)[echo]] = True
        return echoes

    def _reach(self, batch: Batch, cells: int) -> None:
        """Make room for the cells that this batch has named."""
        before = len(self._site)
        if cells == before:
            return
        site = np.zeros(cells - before, np.int32)
        late = batch.cells >= before
        site[batch.cells[late] - before] = batch.key[1][late]

        def grown(old: NDArray[Any], fill: float = 0) -> NDArray[Any]:
            return np.append(old, np.full(cells - before, fill, old.dtype))

        self._stats = [grown(old, empty) for old, empty in zip(self._stats, EMPTY, strict=True)]
        self.copies, self._filled, self.bad = grown(self.copies), grown(self._filled), grown(self.bad)
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
