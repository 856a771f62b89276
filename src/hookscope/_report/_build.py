"""From a run and its diagnosis to the view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core._errors import UsageError
from .._core._finding import Diagnosis, Finding
from .._core._site import ROOT, Site
from .._record._incident import incident_paths
from . import _words as words
from ._blindness import blindness, silent, spent, trained
from ._curve import curve
from ._depth import gradient_by_depth
from ._measure import Measured, added, measure, of_kind
from ._tree import module_tree
from ._view import Facts, FindingView, View

if TYPE_CHECKING:
    from .._record import Run

BLIND = "blind"  # the rule whose findings say what was not seen, and why
PLACES = {"loss": "in the loss", "optimizer": "in the optimizer", "data": "in the data", "loop": "in the training loop"}


def build(run: Run, diagnosis: Diagnosis, *, step: int | None = None, select: Any = None) -> View:
    """Everything a report of this run shows.

    `step` chooses the step whose numbers the module tree shows; a step that was not recorded is a `UsageError` naming the nearest.
    Default: the step at which the first error begins, since later on all modules look alike sick; without an error, the last seen.
    `select` keeps only the modules of the sites it selects, and their containers.

    >>> from hookscope._record import MemoryWriter
    >>> build(MemoryWriter().run, Diagnosis("in memory", 0)).summary
    'No step was recorded, so there is nothing to judge.'
    """
    step = _beginning(run, diagnosis) if step is None else step
    row = None if step is None else _row(run, step)
    findings = tuple(finding_view(i + 1, finding) for i, finding in enumerate(diagnosis.findings))
    facts = _facts(run)
    sites = _selected(run, select)
    return View(
        run=str(diagnosis.run),
        verdict=diagnosis.verdict,
        title=diagnosis.verdict if facts.steps else "nothing recorded",
        summary=_summary(facts, diagnosis),
        cost=_cost(facts),
        facts=facts,
        findings=findings,
        tree=module_tree(run, sites, row=row, findings=findings, silent=silent(run.events)),
        loss=curve(run.steps, _loss(run), pick=_last),
        depth=gradient_by_depth(run, sites),
        blindness=blindness(run.events, told=any(f.rule == BLIND for f in findings), unread_bytes=run.summary().unread_bytes),
        incidents=_incidents(run),
        shown_step=step,
    )


def _beginning(run: Run, diagnosis: Diagnosis) -> int | None:
    errors = diagnosis.at_least("error")
    return errors[0].first_step if errors and errors[0].first_step in run.steps else None


def _row(run: Run, step: int) -> int:
    recorded = [int(each) for each in run.steps]
    if step in recorded:
        return recorded.index(step)
    near = min(recorded, key=lambda each: abs(each - step), default=None)
    hint = "no step was recorded" if near is None else f"the nearest recorded is {near} (recorded: {recorded[0]} to {recorded[-1]})"
    raise UsageError(f"step {step} is not in the run: {hint}")


def _selected(run: Run, select: Any) -> Sequence[Site]:
    """The sites to show: all, or all sites of the selected ones' modules."""
    if select is None:
        return run.sites
    from .._core._select import select_sites

    modules = {site.full_module for site in select_sites(run.sites, select)}
    return [site for site in run.sites if site.full_module in modules]


def _last(values: Any) -> float:
    return float(values[-1])


def _loss(run: Run) -> Measured:
    """The loss of each step: the mean of its micro-batches; with several losses, their sum."""
    return added(measure(run, of_kind(run.sites, "loss"), "mean"))


def _facts(run: Run) -> Facts:
    summary, steps, loss = run.summary(), run.steps, _loss(run)
    rows = np.flatnonzero(loss.present)
    return Facts(
        steps=len(steps),
        trained=trained(run),
        first_step=int(steps[0]) if len(steps) else None,
        last_step=int(steps[-1]) if len(steps) else None,
        modules=len({site.full_module for site in run.sites if site.kind not in ("loss", "scalar")}),
        sites=len(run.sites),
        status=str(summary.status),
        seconds=summary.duration,
        size_bytes=summary.bytes or None,
        spent_seconds=spent(run.events),
        first_loss=float(loss.values[rows[0]]) if len(rows) else None,
        last_loss=float(loss.values[rows[-1]]) if len(rows) else None,
    )


def _summary(facts: Facts, diagnosis: Diagnosis) -> str:
    if not facts.steps:
        return "No step was recorded, so there is nothing to judge."
    seen = words.recorded(facts.steps, facts.trained)
    if not diagnosis.findings:
        return f"No rule found anything wrong in {seen}."
    numbers = [
        words.count(sum(f.severity == severity for f in diagnosis.findings), noun)
        for severity, noun in (("error", "error"), ("warning", "warning"), ("info", "note"))
        if any(f.severity == severity for f in diagnosis.findings)
    ]
    if not diagnosis.at_least("warning"):
        return f"No rule found anything wrong in {seen}; {numbers[0]}."
    first = diagnosis.findings[0]
    return f"{' and '.join(numbers)} in {seen}; it begins at step {first.first_step:,}, {_place(first)}."


def _incidents(run: Run) -> str:
    """The folders by their names: what lies in them is read by who wants to see it."""
    folders = incident_paths(run.path / "incidents") if run.path is not None else []
    if not folders:
        return ""
    steps = [folder.name.partition("-")[0] for folder in folders]
    return f"{words.count(len(folders), 'incident')}, at step {', '.join(dict.fromkeys(steps))}; again: hookscope replay {folders[0]}"


def _cost(facts: Facts) -> str:
    parts = [words.recorded(facts.steps, facts.trained), words.count(facts.modules, "module"), words.count(facts.sites, "site")]
    parts += [_time(facts)] if facts.seconds is not None else []
    parts += [f"{words.size(facts.size_bytes)} recorded"] if facts.size_bytes is not None else []
    return " · ".join([*parts, facts.status])


def _time(facts: Facts) -> str:
    assert facts.seconds is not None
    spent = f" ({words.seconds(facts.spent_seconds)} of it watching)" if facts.spent_seconds is not None else ""
    return words.seconds(facts.seconds) + spent


def _place(finding: Finding) -> str:
    if finding.where != "module":
        return PLACES[finding.where]
    return "in the model itself" if finding.module == ROOT else f"in {finding.module or finding.site or 'the model'}"


def finding_view(number: int, finding: Finding) -> FindingView:
    """One finding, its fields made into text."""
    source = finding.source
    rank = () if finding.rank is None else (("rank", str(finding.rank)),)
    op = () if finding.op is None else (("op", finding.op),)
    return FindingView(
        number=number,
        rule=finding.rule,
        severity=finding.severity,
        message=finding.message,
        where=_place(finding),
        phase=finding.phase,
        steps=words.steps(finding.first_step, finding.last_step),
        module=finding.module,
        source=None if source is None else f"{source['file']}:{source['line']}  {source['code'].strip()}",
        evidence=(*op, *rank, *words.evidence({key: value for key, value in finding.evidence.items() if key != "operation" or not op})),
        causes=tuple(finding.causes),
        advice=tuple(finding.advice),
        explains=tuple(position + 1 for position in finding.explains),
    )
