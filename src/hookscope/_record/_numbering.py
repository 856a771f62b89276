"""Cells numbered: each step, site, micro-batch and call has one number, which is that of all ranks that have it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ._columns import Rows
from ._scan import Columns

KEY = ("step", "site", "micro", "call")
_MICROS = _CALLS = 1024  # more than a watch keeps apart


@dataclass(frozen=True, slots=True)
class Batch:
    """What says where the rows of a batch belong. Ranks that do the same have equal ones, which are then one object."""

    like: tuple[int, int]  # first step and rows: what equal batches have in common
    key: tuple[NDArray[np.int64], ...]
    cells: NDArray[np.intp]
    distinct: bool  # whether each of its cells is named once
    steps: NDArray[np.int64]
    step_at: NDArray[np.intp]
    sites: NDArray[np.int64]  # how many rows of each site

    @property
    def at(self) -> slice | NDArray[np.intp]:
        """The cells, as a slice where they lie one after the other: that is much faster to read and write."""
        cells = self.cells
        together = self.distinct and len(cells) == cells[-1] - cells[0] + 1 and bool((cells[1:] > cells[:-1]).all())
        return slice(int(cells[0]), int(cells[-1]) + 1) if together else cells


class Numbering:
    """`batch` numbers the rows of a batch of any rank; `places` are the cells named so far, with the first rank that has named each."""

    def __init__(self, sites: int) -> None:
        self._sites = sites
        self._keys = np.zeros(0, np.int64)
        self._numbers = np.zeros(0, np.intp)
        self._places: list[Rows] = []
        self._latest: dict[tuple[int, int], Batch] = {}
        self.cells = 0

    def batch(self, columns: Columns, rank: int) -> Batch:
        """Where the rows of this batch belong."""
        key = tuple(columns[name] for name in KEY)
        like = int(key[0][0]), len(key[0])
        known = self._latest.get(like)
        if known is not None and all(np.array_equal(a, b) for a, b in zip(known.key, key, strict=True)):
            return known
        cells = self._numbered(columns, rank)
        steps, step_at = np.unique(key[0], return_inverse=True)
        found = Batch(like, key, cells, len(np.unique(cells)) == len(cells), steps, step_at, np.bincount(key[1], minlength=self._sites))
        self._latest[like] = found
        return found

    def places(self) -> Rows:
        """A row a cell, in the order of their numbers; the stats are empty."""
        return Rows.joined(self._places)

    def _numbered(self, columns: Columns, rank: int) -> NDArray[np.intp]:
        step, site, micro, call = (columns[name].astype(np.int64) for name in KEY)
        keys = ((step * self._sites + site) * _MICROS + micro + 1) * _CALLS + call
        at = np.minimum(np.searchsorted(self._keys, keys), max(len(self._keys) - 1, 0))
        fresh = self._keys[at] != keys if len(self._keys) else np.ones(len(keys), bool)
        if fresh.any():
            self._add(keys, np.flatnonzero(fresh), columns, rank)
            at = np.searchsorted(self._keys, keys)
        return self._numbers[at]

    def _add(self, keys: NDArray[np.int64], fresh: NDArray[np.intp], columns: Columns, rank: int) -> None:
        _, first = np.unique(keys[fresh], return_index=True)
        which = fresh[np.sort(first)]
        numbers = np.arange(self.cells, self.cells + len(which))
        self.cells += len(which)
        all_keys, all_numbers = np.append(self._keys, keys[which]), np.append(self._numbers, numbers)
        order = np.argsort(all_keys, kind="stable")
        self._keys, self._numbers = all_keys[order], all_numbers[order]
        named = {name: columns[name][which] for name in ("step", "micro", "site", "call", "seq")}
        nothing = np.empty((len(which), 0))
        self._places.append(replace(Rows.empty(), rank=np.full(len(which), rank, np.int32), stats=nothing, **named))
