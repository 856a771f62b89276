"""Rows become numbers: one per step and site, merged exactly over micro-batches, calls and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._core._quantity import quantity as derive
from .._core._site import Site
from .._core._stats import Rows as StatRows
from .._core._stats import merge_groups
from ._columns import Rows

Steps = NDArray[np.int64]
Values = NDArray[np.float64]
_quiet = np.errstate(all="ignore")  # Inf and NaN are what a run is asked about, not an accident of the reading


class Series(NamedTuple):
    """One number a step. `steps` holds only steps at which the site was recorded.

    >>> Series(np.array([0, 2]), np.array([1.0, 0.5])).values.tolist()
    [1.0, 0.5]
    """

    steps: Steps
    values: Values


@dataclass(frozen=True, slots=True)
class Matrix:
    """One number a step and site: `values[i, j]` is that of `sites[j]` at `steps[i]`, NaN where it was not recorded.

    >>> Matrix(np.array([0]), (Site(0, "loss", "loss"),), np.array([[0.5]])).values.shape
    (1, 1)
    """

    steps: Steps
    sites: tuple[Site, ...]
    values: Values


@dataclass(frozen=True, slots=True)
class Cells:
    """Merged stats; row i belongs to the step `steps[step[i]]` and the site `sites[site[i]]`, each pair at most once."""

    step: NDArray[np.intp]
    site: NDArray[np.intp]
    stats: StatRows


@_quiet
def merge_cells(rows: Rows, sites: Sequence[Site], steps: Steps) -> Cells:
    """The stats of these sites (each given once), one row a step and site. `steps` is sorted and holds every step of the rows, which are
    those that count when ranks are merged.
    """
    column = _columns(rows.site, sites)
    wanted = np.flatnonzero(column >= 0)
    cell = np.searchsorted(steps, rows.step[wanted]) * len(sites) + column[wanted]
    order = np.argsort(cell, kind="stable")
    cell = cell[order]
    starts = np.flatnonzero(np.diff(cell, prepend=-1))
    step, site = np.divmod(cell[starts], max(len(sites), 1))
    return Cells(step, site, merge_groups(rows.stats[wanted[order]], starts))


@_quiet
def cell_values(cells: Cells, sites: Sequence[Site], name: str) -> Values:
    """The quantity of every cell; totals of a site that reads but a sample are extrapolated to all its elements."""
    values = derive(name, cells.stats)
    scale = np.array([_scale(site) for site in sites])
    for factor in set(scale[scale != 1.0].tolist()):
        which = scale[cells.site] == factor
        values[which] = derive(name, cells.stats[which], scale=factor)
    return values


def matrix_values(rows: Rows, sites: Sequence[Site], steps: Steps, name: str) -> Values:
    """The quantity as [steps, sites]; a site may be asked for twice."""
    ids = np.array([site.id for site in sites], np.int64)
    _, first, back = np.unique(ids, return_index=True, return_inverse=True)
    distinct = [sites[i] for i in first]
    cells = merge_cells(rows, distinct, steps)
    values = np.full((len(steps), len(distinct)), np.nan)
    values[cells.step, cells.site] = cell_values(cells, distinct, name)
    return values[:, back]


@_quiet
def ratio(update: Values, parameter: Values) -> Values:
    """rms of the update over rms of the parameter; a parameter of zeros gives inf, or NaN if it was not changed either."""
    return update / parameter


def _columns(ids: NDArray[np.int32], sites: Sequence[Site]) -> NDArray[np.intp]:
    """For every row the position of its site among `sites`, or -1."""
    size = max([int(ids.max(initial=-1)), *(site.id for site in sites)], default=-1) + 1
    position = np.full(size, -1, np.intp)
    position[[site.id for site in sites]] = np.arange(len(sites))
    return position[ids]


def _scale(site: Site) -> float:
    if site.sampled and site.numel and site.sampled < site.numel:
        return site.numel / site.sampled
    return 1.0
