"""How large activations and their gradients are along the depth of the model, in the order of execution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._core._site import Site
from .._record import Run
from ._places import Place, Places, enclosing, inside
from ._step import Row, StepRows, read_steps

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stage:
    """One module's output in the order of execution, and its rms."""

    site: Site
    rms: float


def first_step(run: Run) -> StepRows | None:
    """The first step the run holds."""
    return next(read_steps(run, [int(s) for s in list(run.steps)[:1]]), None)


def outputs_in_order(step: StepRows) -> list[Row]:
    """Every call's floating outputs in the first micro-batch; a container that hands on its child's tensor is left out."""
    kept: list[Row] = []
    for row in step.of("output", step.micros[0]) if step.micros else []:
        repeated = bool(kept) and kept[-1].stats == row.stats and inside(kept[-1].site.module, row.site.module)
        if not repeated and row.stats.count > 1:
            kept.append(row)
    return kept


def stages(step: StepRows) -> list[Stage]:
    """The stages of one model, the one with most modules, whose outputs are finite."""
    rows = [r for r in outputs_in_order(step) if not r.nonfinite]
    models = [r.site.model for r in rows]
    main = max(set(models), key=models.count, default="")
    return [Stage(r.site, float(np.sqrt(r.stats.sumsq / r.stats.count))) for r in rows if r.site.model == main]


def responsible(run: Run, chain: list[Stage], start: int, stop: int) -> Place:
    """The smallest module that encloses stages start..stop; where that is the model itself, the first of them."""
    where = enclosing(s.site.module for s in chain[start : stop + 1])
    site = chain[start].site
    return Places.of(run.sites).at(site.model, where or site.module)


def span(reached: Values, share: float = 0.8) -> tuple[int, int]:
    """The shortest stretch of stages (first, last) over which that share of the whole change on a log scale happens."""
    change = np.abs(np.diff(np.log(np.maximum(reached, 1e-300))))
    needed, total = share * change.sum(), np.concatenate(([0.0], np.cumsum(change)))
    best = (1, len(change))
    for start in range(len(change)):
        stop = int(np.searchsorted(total, total[start] + needed - 1e-12))
        if stop <= len(change) and stop - start < best[1] - best[0] + 1:
            best = (start + 1, stop)
    return best
