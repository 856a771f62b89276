"""`ablate`: which sites, or units, a metric depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from torch import nn

from ..._core._errors import UsageError
from .._batch import batches
from ._ablation import Ablation, Effect, ranked
from ._edit import Edit
from ._observing import Counting
from ._op import Op
from ._plain_ops import zero
from ._progress import progress
from ._running import Runs, mean_of, observed, sites_of
from ._where import Picked, picked, within

Metric = Callable[[nn.Module, Any], Any]


def ablate(  # noqa: PLR0913  # a sweep is a model, data, a metric, and what to do where
    model: nn.Module,
    select: Any,
    metric: Metric,
    loader: Any,
    *,
    op: Op | None = None,
    units: Literal["each"] | Picked | None = None,
) -> Ablation:
    """Rank sites, or single units of them, by how much a metric changes when they are edited, one at a time.

    `select` chooses the sites, outputs where it names no kind. `metric(model, batch)` returns a number, or a tensor with one for each
    sample; its mean over all batches of `loader`, or over all samples, is what is compared. `op` is what is done to a site, by default
    `hs.zero()`; narrowed by `at`, to that part of it. With `units="each"` every unit is edited by itself, with numbers or a slice those of
    each site.

    The model runs over all batches once without an edit and once for each site or unit, without gradients, in the mode it is in (call
    `model.eval()` first where that is meant), each time from the same random state; buffers are put back. A loader that can be run through
    only once is read into memory; a tensor, tuple or dict is one batch. Sites that never run, such as lists of modules, are left out. A bar
    shows the progress on a terminal.

    Returns an `Ablation`. Raises `SelectionError` where nothing matches and `UsageError` where nothing that matches runs, a site lacks a
    unit, or the metric returns no number.

    >>> import torch
    >>> from torch import nn
    >>> import hookscope as hs
    >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Identity())
    >>> _ = model[0].weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
    >>> hs.ablate(model, "0", lambda model, x: model(x).sum(), [torch.ones(1, 2)], units="each")
    without any edit: 6
    site             metric  effect
    0:output unit 1       1      -5
    0:output unit 0       5      -1
    """
    runs = Runs(model)
    chosen = sites_of(model, select)
    given = batches(loader)
    given = list(given) if iter(given) is given else given  # an iterator is its own
    counting = Counting()
    with observed(runs, {alone: counting for _, alone in chosen}):
        baseline = _measured(runs, metric, given)
    if not counting.units:
        raise UsageError(f"nothing that {select!r} matches ran: choose modules that are called, and call the model in the metric")
    work = [
        (site, alone, unit)
        for site, alone in chosen
        if site.name in counting.units
        for unit in _units(units, counting.units[site.name], site.name)
    ]
    if not work:
        raise UsageError(f"units={units!r} picks none of the {max(counting.units.values())} units")
    rows = []
    with progress("ablating", len(work)) as done:
        for site, alone, unit in work:
            narrowed = (op or zero()) if unit is None else (op or zero()).at(units=unit)
            with Edit(model, {alone: narrowed}, turn=runs.turn):
                value = _measured(runs, metric, given)
            rows.append(Effect(site.name, unit, value, value - baseline))
            done()
    return ranked(baseline, rows)


def _measured(runs: Runs, metric: Metric, loader: Iterable[Any]) -> float:
    def meant(batch: Any) -> Any:
        with runs.turn:  # what the loader runs itself is not
            return metric(runs.model, batch)

    with runs.fresh():
        return mean_of(map(meant, loader), "loader")


def _units(units: Literal["each"] | Picked | None, count: int, site: str) -> list[int] | list[None]:
    if units is None:
        return [None]
    if isinstance(units, str):
        if units != "each":
            raise UsageError(f"units={units!r}: give 'each', numbers, a slice, or None for whole sites")
        return list(range(count))
    index = picked("units", units)
    return [] if index is None else sorted(within(index, count, "unit", site))
