"""Which part of each site's tensor each rank holds, and the rows that count when ranks are merged: every element once."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core._site import PARAM_KINDS, Site
from ._columns import Mask, Rows

OWN_LABELS = ("local", "micro")  # gradients as a rank's own samples gave them
ITS_OWN = -1
FLAT = "flat:"  # begins the word for a piece that is cut out of a flattened parameter: its first element, and how many they are


@dataclass(frozen=True)
class Shares:
    """`tables` are the sites of each rank, numbered alike; `groups` the ranks that work on the same samples, where there are such."""

    tables: Mapping[int, Sequence[Site]]
    groups: Collection[tuple[int, ...]] = ()

    def counted(self, rows: Rows) -> Rows:
        """The rows of which every element of a merged tensor is in exactly one.

        Of ranks that hold the same part of a parameter the lowest counts, and so of tensor-parallel ranks whose activations are equal
        to the bit. A parameter of which a part is missing in a step has no row there. Where it is sampled, each part weighs what it holds.
        """
        if not len(rows) or not rows.rank.any():
            return rows
        rank = self._row[rows.rank]
        part = np.where(rows.stats[:, 0] < self.elements[rank, rows.site], ITS_OWN, self.parts[rank, rows.site])
        kept = np.ones(len(rows), bool)
        held = np.flatnonzero(part != ITS_OWN)
        if len(held):
            kept[held] = self._once(rows, held, part[held])
        if self.groups:
            kept &= ~self._echoes(rows, part == ITS_OWN)
        found = rows.take(np.flatnonzero(kept))
        weight = self.weights[self._row[found.rank], found.site]
        if (weight != 1.0).any():
            stats = found.stats.copy()
            stats[:, :6] *= weight[:, None]
            found = replace(found, stats=stats)
        return found

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """The table of all ranks together; of a sampled parameter in parts, `sampled` counts the elements of all parts."""
        found: dict[int, Site] = {}
        for _, table in self._distinct:
            for site in table:
                found.setdefault(site.id, site)
        sampled = {i: _sampled(parts.values()) for i, parts in self._held.items() if any(s.part and s.sampled for s in parts.values())}
        return tuple(replace(site, sampled=sampled[i]) if i in sampled else site for i, site in sorted(found.items()))

    def _once(self, rows: Rows, held: NDArray[np.intp], part: NDArray[np.int32]) -> Mask:
        """Of each part in each cell the row of the lowest rank; none of a cell that lacks a part."""
        keys: tuple[NDArray[Any], ...] = (rows.rank[held], part, rows.call[held], rows.micro[held], rows.site[held], rows.step[held])
        order = np.lexsort(keys)
        cells = np.stack([key[order] for key in keys[2:]])
        new_cell = np.append(True, (cells[:, 1:] != cells[:, :-1]).any(axis=0))
        first = new_cell | np.append(True, part[order][1:] != part[order][:-1])
        cell = np.cumsum(new_cell) - 1
        filled = self.filled[self._row[rows.rank[held]], rows.site[held]][order]
        whole = np.bincount(cell, weights=first & filled) >= self.needed[rows.site[held][order[new_cell]]]
        kept = np.empty(len(held), bool)
        kept[order] = first & whole[cell]
        return kept

    def _echoes(self, rows: Rows, own: Mask) -> Mask:
        """Rows that repeat to the bit what a lower rank of the same group has."""
        which = np.flatnonzero(own)
        numbers = np.full(int(rows.rank.max()) + 1, ITS_OWN, np.int64)
        for number, members in enumerate(self.groups):
            numbers[[rank for rank in members if rank < len(numbers)]] = number
        group = numbers[rows.rank[which]]
        which, group = which[group >= 0], group[group >= 0]
        bits: list[NDArray[np.int64]] = list(np.ascontiguousarray(rows.stats[which]).view(np.int64).T)
        keys: tuple[NDArray[Any], ...] = (
            rows.rank[which],
            *bits,
            rows.call[which],
            rows.micro[which],
            rows.site[which],
            rows.step[which],
            group,
        )
        order = np.lexsort(keys)
        same = np.stack([key[order] for key in keys[1:]])
        echo = np.zeros(len(rows), bool)
        echo[which[order[1:]]] = (same[:, 1:] == same[:, :-1]).all(axis=0)
        return echo

    @cached_property
    def _row(self) -> NDArray[np.intp]:
        """By rank, its place among the tables."""
        place = np.zeros(max(self.tables, default=0) + 1, np.intp)
        place[list(self.tables)] = np.arange(len(self.tables))
        return place

    @cached_property
    def size(self) -> int:
        """One more than the largest number of a site."""
        return 1 + max((site.id for _, table in self._distinct for site in table), default=0)

    @cached_property
    def _distinct(self) -> list[tuple[NDArray[np.intp], Sequence[Site]]]:
        """The tables that differ, each with its places: of a thousand ranks that train data-parallel it is one."""
        places: dict[int, list[int]] = {}
        for place, table in enumerate(self.tables.values()):
            places.setdefault(id(table), []).append(place)
        by_id = {id(table): table for table in self.tables.values()}
        return [(np.array(found), by_id[key]) for key, found in places.items()]

    @cached_property
    def _held(self) -> dict[int, dict[str, Site]]:
        """By site, the distinct parts, each as the lowest rank has it."""
        found: dict[int, dict[str, Site]] = {}
        for _, table in self._distinct:
            for site in table:
                if shared(site):
                    found.setdefault(site.id, {}).setdefault(site.part, site)
        return found

    @cached_property
    def parts(self) -> NDArray[np.int32]:
        """[rank, site] the number of the part, `ITS_OWN` for what is no part of anything."""
        part = np.full((len(self.tables), self.size), ITS_OWN, np.int32)
        numbers = {i: {name: n for n, name in enumerate(sorted(parts))} for i, parts in self._held.items()}
        for rows, table in self._distinct:
            for site in table:
                if shared(site):
                    part[rows, site.id] = numbers[site.id][site.part]
        return part

    @cached_property
    def needed(self) -> NDArray[np.int32]:
        """[site] how many parts with an element there are."""
        needed = np.ones(self.size, np.int32)
        for i, parts in self._held.items():
            last = list(parts.values())[-1]
            cut = any(part.startswith(FLAT) for part in parts)
            needed[i] = sum(1 for site in parts.values() if site.held != 0) if cut else parts_in_all(last.part, last.shape or ())
        return needed

    @cached_property
    def kinds_of_parts(self) -> NDArray[np.int64]:
        """[site] how many different parts ranks hold of it; 0 of what is each rank's own."""
        return np.array([len(self._held.get(i, ())) for i in range(self.size)], np.int64)

    @cached_property
    def alone(self) -> Mask:
        """[site] whether every rank that has it holds the whole of it."""
        return np.array([set(self._held.get(i, ())) == {""} for i in range(self.size)], bool)

    @cached_property
    def elements(self) -> NDArray[np.float64]:
        """[rank, site] how many are read of what no rank calls a part; a row of fewer is a piece cut by hand, and adds up."""
        elements = np.zeros((len(self.tables), self.size))
        for rows, table in self._distinct:
            for site in table:
                if shared(site) and not site.part:
                    elements[rows, site.id] = (site.sampled if site.sampled is not None else site.numel) or 0
        return elements

    @cached_property
    def filled(self) -> Mask:
        """[rank, site] whether the part has any element."""
        filled = np.ones((len(self.tables), self.size), bool)
        for rows, table in self._distinct:
            empty = np.array([site.id for site in table if site.held == 0 and site.numel], np.intp)
            filled[rows[:, None], empty] = False
        return filled

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """[rank, site] the elements that a sampled one of this rank stands for, over those that one of all ranks does."""
        weights = np.ones((len(self.tables), self.size))
        merged = {site.id: site for site in self.sites}
        for rows, table in self._distinct:
            for site in table:
                all_of_it = merged[site.id]
                if site.part and site.held and site.numel and all_of_it.sampled:
                    weights[rows, site.id] = (site.held / (site.sampled or site.held)) / (site.numel / all_of_it.sampled)
        return weights

    @cached_property
    def kind_of_table(self) -> NDArray[np.intp]:
        """By place, a number that ranks with one table have in common."""
        kinds = np.zeros(len(self.tables), np.intp)
        for number, (rows, _) in enumerate(self._distinct):
            kinds[rows] = number
        return kinds

    def place(self, rank: int) -> int:
        """The place of a rank among the tables."""
        return int(self._row[rank])


def shared(site: Site) -> bool:
    """Whether ranks hold the same tensor there, or parts of one: parameters, their averaged gradients, their updates."""
    return site.kind in PARAM_KINDS and site.label not in OWN_LABELS


def parts_in_all(part: str, shape: Sequence[int]) -> int:
    """How many parts with an element there are, when this is one: a dimension is cut into equal pieces, of which the last may be short.

    >>> parts_in_all("", (8, 4)), parts_in_all("0:1/4", (8, 4)), parts_in_all("0:1/4,1:0/2", (3, 4))
    (1, 4, 6)
    """
    cuts: dict[int, list[int]] = {}
    for one in filter(None, part.split(",")):
        dim, _, place = one.partition(":")
        cuts.setdefault(int(dim), []).append(int(place.rpartition("/")[2]))
    return math.prod(_pieces(shape[dim] if dim < len(shape) else math.prod(sizes), sizes[::-1]) for dim, sizes in cuts.items())


def _pieces(length: int, sizes: Sequence[int]) -> int:
    """Pieces with an element when a length is cut by the first size, each piece by the second, and so on."""
    if not sizes:
        return int(length > 0)
    piece = max(-(-length // sizes[0]), 1)
    return sum(_pieces(min(piece, length - at), sizes[1:]) for at in range(0, length, piece))


def _sampled(parts: Collection[Site]) -> int:
    return sum(site.sampled if site.sampled is not None else site.held or 0 for site in parts)
