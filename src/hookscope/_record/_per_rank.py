"""Ranks side by side: one number a step and rank, and the steps that not all of them have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._core._site import Site
from ._columns import Rows, distinct_steps
from ._series import Steps, Values, cell_values, merge_cells
from ._shares import Shares


class PerRank(NamedTuple):
    """`values[i, j]` is the number of `ranks[j]` at `steps[i]`, NaN where that rank has not recorded it."""

    steps: Steps
    ranks: NDArray[np.int32]
    values: Values


def values_per_rank(rows: Rows, site: Site, shares: Shares | None, quantity: str) -> PerRank:
    """A quantity of one site of all these rows, which are of that site. Of a tensor in parts each rank has its own."""
    steps, ranks = distinct_steps(rows.step), np.unique(rows.rank)
    values = np.full((len(steps), len(ranks)), np.nan)
    for column, rank in enumerate(ranks.tolist()):
        here = _of_rank(site, shares, rank)
        cells = merge_cells(rows.take(np.flatnonzero(rows.rank == rank)), [here], steps)
        values[cells.step, column] = cell_values(cells, [here], quantity)
    return PerRank(steps, ranks, values)


def _of_rank(site: Site, shares: Shares | None, rank: int) -> Site:
    table = () if shares is None else shares.tables.get(rank, ())
    own = next((one for one in table if one.id == site.id), site)
    return own if own.held is None else replace(own, numel=own.held)


def uneven_steps(rows: Rows, steps: Steps) -> Steps:
    """Steps that a rank has left out between its first and its last."""
    return gaps(steps, [rows.step[rows.rank == rank] for rank in np.unique(rows.rank).tolist()])


def gaps(steps: Steps, taken: Sequence[Steps]) -> Steps:
    """The same, from the steps that each rank has taken."""
    left_out = np.zeros(len(steps), bool)
    for own in taken if len(taken) > 1 else ():
        has = np.isin(steps, own)
        first, last = np.flatnonzero(has)[[0, -1]]
        left_out[first : last + 1] |= ~has[first : last + 1]
    return steps[left_out]
