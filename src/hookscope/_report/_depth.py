"""The gradient by depth: how its size changes from the last module to the first, in the first and in the last steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .._core._site import Site
from ._curve import Floats, heights, scale
from ._measure import Measured, measure
from ._order import execution_order
from ._view import Curve, DepthView, Number
from ._words import steps

if TYPE_CHECKING:
    from .._record import Run

FEW = 5  # steps that a profile is the median of, so that a single odd batch does not draw it


def gradient_by_depth(run: Run, sites: Sequence[Site]) -> DepthView | None:
    """The profile over the leaf modules among `sites`; None where fewer than two of them have a gradient."""
    leaves = _leaves(run, sites)
    measured = measure(run, leaves, "rms")
    rows = np.flatnonzero(measured.present.any(axis=1))
    if len(leaves) < 2 or not len(rows):
        return None
    few = min(FEW, max(1, len(rows) // 2))
    early, late = rows[:few], rows[-few:]
    first, last = _profile(measured, early), _profile(measured, late)
    between = scale([*first, *last])
    places = tuple(range(len(leaves)))
    return DepthView(
        modules=tuple(site.full_module for site in leaves),
        first=Curve(places, first, heights(first, between)),
        last=Curve(places, last, heights(last, between)),
        first_steps=steps(int(run.steps[early[0]]), int(run.steps[early[-1]])),
        last_steps=steps(int(run.steps[late[0]]), int(run.steps[late[-1]])),
    )


def _leaves(run: Run, sites: Sequence[Site]) -> list[Site]:
    """One output gradient site for each module that has none below it, in the order in which their outputs appear."""
    order = execution_order(run)
    outputs = {site.full_module: order[site.id] for site in run.sites if site.id in order}
    found: dict[str, Site] = {}
    for site in sites:
        if site.kind == "output_grad" and not site.label and site.full_module in outputs:
            found.setdefault(site.full_module, site)
    containers = {path.rpartition(".")[0] for path in outputs}
    containers |= {prefix for path in containers for prefix in _prefixes(path)}
    return sorted(
        (site for path, site in found.items() if path not in containers and path != "(root)"), key=lambda s: outputs[s.full_module]
    )


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def _profile(measured: Measured, rows: NDArray[np.intp]) -> tuple[Number, ...]:
    return tuple(_middle(measured.values[rows, i][measured.present[rows, i]]) for i in range(measured.values.shape[1]))


def _middle(values: Floats) -> Number:
    if not len(values):
        return None
    bad = values[~np.isfinite(values)]
    return float(bad[0]) if len(bad) else float(np.median(values))
