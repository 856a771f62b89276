"""All rows of a run in memory, and what is asked of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .._core._site import Site
from ._columns import Rows, distinct_steps
from ._per_rank import uneven_steps
from ._series import Steps
from ._shares import Shares
from ._spread import Spread, spread_of


class Table(Protocol):
    """The rows of a run, wherever they are. `window` is the first and the last step wanted, both included, None for no bound."""

    @property
    def steps(self) -> Steps:
        """The recorded steps, sorted."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have recorded anything."""

    @property
    def uneven(self) -> Steps:
        """Steps that some rank has left out, between its first and its last."""

    @property
    def counted(self) -> Rows:
        """The rows of which every element that ranks hold in common is in one; or fewer, merged over ranks."""

    def counted_of(self, site: Site, quantity: str) -> Rows:
        """The counted rows of one site, with what the quantity is made of."""

    def rows(self, first: int | None, last: int | None) -> Rows:
        """All rows as they were recorded, in the order of step, micro-batch and execution."""

    def overview(self, first: int | None, last: int | None) -> Rows:
        """The same; or what ranks have merged into one row, where there are too many."""

    def rows_of(self, site: Site, first: int | None, last: int | None) -> Rows:
        """All rows of one site, rank by rank."""

    def spread(self, site: Site) -> Spread:
        """How far ranks lie apart at a site that they hold in common."""

    def squares(self, sites: Sequence[Site]) -> NDArray[np.float64]:
        """[step, rank] the sum of squares over these sites."""

    def presence(self, sites: Sequence[Site]) -> NDArray[np.int64]:
        """[rank, site] how many rows there are."""

    def portions(self) -> Iterator[Rows]:
        """All rows, as many at a time as memory may hold; at least one portion, be it empty."""


class Held:
    """A run that fits into memory."""

    def __init__(self, parts: Sequence[Rows], shares: Shares | None) -> None:
        self._all = Rows.joined(parts)
        self._shares = shares
        self.ranks = tuple(sorted({int(part.rank[0]) for part in parts if len(part)}))

    @cached_property
    def steps(self) -> Steps:
        """The recorded steps, sorted."""
        return distinct_steps(self._all.step)

    @property
    def uneven(self) -> Steps:
        """Steps that some rank has left out."""
        return uneven_steps(self._all, self.steps)

    @cached_property
    def counted(self) -> Rows:
        """The rows of which every element that ranks hold in common is in one."""
        return self._all if self._shares is None else self._shares.counted(self._all)

    def counted_of(self, site: Site, quantity: str) -> Rows:  # noqa: ARG002  # all of it is at hand
        """Those of one site."""
        return self.counted.take(np.flatnonzero(self.counted.site == site.id))

    @cached_property
    def _ordered(self) -> Rows:
        return self._all.in_order()

    def rows(self, first: int | None, last: int | None) -> Rows:
        """All rows from one step to another, in order."""
        return self._ordered.take(window(self._ordered.step, first, last))

    overview = rows

    def rows_of(self, site: Site, first: int | None = None, last: int | None = None) -> Rows:
        """All rows of one site, rank by rank."""
        which = self._all.site == site.id
        if first is not None:
            which &= self._all.step >= first
        if last is not None:
            which &= self._all.step <= last
        return self._all.take(np.flatnonzero(which))

    def spread(self, site: Site) -> Spread:
        """How far ranks lie apart at a site that they hold in common."""
        return spread_of(self.rows_of(site))

    def squares(self, sites: Sequence[Site]) -> NDArray[np.float64]:
        """[step, rank] the sum of squares over these sites."""
        rows = self._all.take(np.flatnonzero(np.isin(self._all.site, [site.id for site in sites])))
        step, rank = np.searchsorted(self.steps, rows.step), np.searchsorted(self.ranks, rows.rank)
        size = len(self.steps) * len(self.ranks)
        summed = np.bincount(step * len(self.ranks) + rank, rows.stats[:, 5], minlength=size).astype(np.float64)
        return summed.reshape(len(self.steps), len(self.ranks))

    def presence(self, sites: Sequence[Site]) -> NDArray[np.int64]:
        """[rank, site] how many rows there are."""
        size = 1 + max([int(self._all.site.max(initial=-1)), *(site.id for site in sites)], default=-1)
        rank = np.searchsorted(self.ranks, self._all.rank)
        counts = np.bincount(rank * size + self._all.site, minlength=len(self.ranks) * size).reshape(len(self.ranks), size)
        return counts[:, [site.id for site in sites]].astype(np.int64)

    def portions(self) -> Iterator[Rows]:
        """All rows at once."""
        yield self._all


def window(steps: Steps, first: int | None, last: int | None) -> slice:
    """Where these steps lie among sorted ones."""
    begin = 0 if first is None else np.searchsorted(steps, first, "left")
    end = len(steps) if last is None else np.searchsorted(steps, last, "right")
    return slice(int(begin), int(end))
