"""The tree of modules with what was measured in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from .._core._finding import SEVERITIES, Severity
from .._core._site import Kind, Site
from ._curve import curve
from ._measure import Measured, added, measure, norm, of_kind
from ._order import Branch, branches, execution_order, sort_by_execution
from ._view import FindingView, ModuleView, Number

if TYPE_CHECKING:
    from .._record import Run


@dataclass(frozen=True, slots=True)
class Table:
    """One quantity at all sites of one kind, with the column of each site by its id."""

    measured: Measured
    columns: Mapping[int, int]

    def of(self, sites: Sequence[Site]) -> Measured:
        """The columns of those of the sites that are in the table."""
        return self.measured[[self.columns[site.id] for site in sites if site.id in self.columns]]


def table(run: Run, kind: Kind, quantity: str) -> Table:
    """That quantity at all sites of the kind."""
    sites = of_kind(run.sites, kind)
    return Table(measure(run, sites, quantity), {site.id: column for column, site in enumerate(sites)})


@dataclass(frozen=True, slots=True)
class Tables:
    """All that the tree shows, and the row (step) it shows; None: the last seen."""

    steps: Sequence[int]
    output: Table
    count: Table
    param: Table
    param_grad: Table
    update: Table
    row: int | None


def tables(run: Run, row: int | None) -> Tables:
    """Read the run once for the whole tree."""
    return Tables(
        steps=[int(step) for step in run.steps],
        output=table(run, "output", "l2"),
        count=table(run, "output", "count"),
        param=table(run, "param", "l2"),
        param_grad=table(run, "param_grad", "l2"),
        update=table(run, "update", "l2"),
        row=row,
    )


def module_tree(
    run: Run, sites: Sequence[Site], *, row: int | None, findings: Sequence[FindingView], silent: frozenset[str]
) -> ModuleView | None:
    """The modules of `sites`, nested, in the order in which they run; `silent` names those that never ran. None where there is none."""
    root = branches(sites)
    if not root.sites and not root.children:
        return None
    sort_by_execution(root, execution_order(run))
    marks: dict[str, list[FindingView]] = {}
    for finding in findings:
        if finding.module is not None:
            marks.setdefault(finding.module, []).append(finding)
    return _marked(_measured(root, tables(run, row)), marks, silent)


def _measured(branch: Branch, data: Tables) -> ModuleView:
    below = [site for each in branch.walk() for site in each.sites]
    gradient = norm(data.param_grad.of(below))
    outputs = of_kind(branch.sites, "output")
    return ModuleView(
        name=branch.name,
        path=branch.path,
        cls=branch.cls,
        shape=next((site.shape for site in outputs), None),
        output_rms=_rms(data, outputs),
        grad_norm=gradient.at(data.row),
        update_ratio=_ratio(data, below),
        gradient=curve(data.steps, gradient),
        children=tuple(_measured(child, data) for child in branch.children.values()),
    )


def _rms(data: Tables, outputs: Sequence[Site]) -> Number:
    total = norm(data.output.of(outputs)).at(data.row)
    elements = added(data.count.of(outputs)).at(data.row)
    if total is None or elements is None or not elements or not np.isfinite(total):
        return total
    return float(total / np.sqrt(elements))


def _ratio(data: Tables, below: Sequence[Site]) -> Number:
    updated = [site for site in below if site.kind == "update" and not site.label]
    paths = {site.full_path for site in updated}
    update = norm(data.update.of(updated)).at(data.row)
    weight = norm(data.param.of([site for site in below if site.kind == "param" and site.full_path in paths])).at(data.row)
    if update is None or weight is None or weight == 0:
        return None
    return update / weight


def _marked(module: ModuleView, marks: Mapping[str, Sequence[FindingView]], silent: frozenset[str]) -> ModuleView:
    found = marks.get(module.path, ())
    return replace(
        module,
        marks=tuple(finding.number for finding in found),
        worst=worst([finding.severity for finding in found]),
        fired=module.path not in silent,
        children=tuple(_marked(child, marks, silent) for child in module.children),
    )


def worst(severities: Sequence[Severity]) -> Severity | None:
    """The gravest of them; None of none."""
    return min(severities, key=SEVERITIES.index, default=None)
