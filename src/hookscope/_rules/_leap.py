"""Finite values that leap, or fall, from one step to the next, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._core._finding import Finding, Phase, Severity, Where
from .._core._site import Site
from .._record import Run
from ._series import Series, column, gradient_norm, loss
from ._step import sites_of

LASTING = 10  # steps after which a fall is no passing silence
SOON = 2  # steps in which what a leap does must show
WEIGHT = 30.0  # times as large as it was, a weight accounts for the leap


def leap(run: Run, *, harm: float = 10.0, ruin: float = 1e3, worse: float = 1.2) -> Iterator[Finding]:
    """A value is suddenly a thousand times as large as this site ever had it, or as small, and the training feels it.

    Fires on the leaps that the watch notes: the largest magnitude at a site is a thousand times its largest so far (in the third
    micro-batch at the earliest), or a thousandth of its smallest (after the twentieth; never where it was all 0 before). The first one of a
    micro-batch is named: in the forward the earliest, whose upstream neighbours are as ever, in the backward the latest. A rise is a
    warning where, in its step or the two next ones, the loss or the global gradient norm exceeds `harm` times its largest value so far, an
    error above `ruin` times; a fall is a warning where it lasts for ten steps and the loss is then above `worse` times what it was, or
    the gradient norm has changed by `harm` (source: bounds of our own, tried on sound trainings with warm-up, steps of the learning rate,
    adversaries and rare rewards; none of them leaps a thousandfold within a module).

    Ignores, but for information, what harms nothing, and what comes with the loss where no operation that leapt was found: a rare reward,
    a far target. Ignores masks, and non-finite values, which other rules name.

    Causes: an outlier in the batch, a division by next to nothing, exp, a weight that was overwritten, a unit that has died.
    Do: look at the operation and its operands, bound what goes in, look at the batch of that step.
    """
    events = [event for event in run.events if event.get("event") == "leap"]
    if not events:
        return
    course = _Course(loss(run), gradient_norm(run))
    found = {event.get("step"): event for event in run.events if event.get("event") == "origin" and event.get("growth")}
    for event in events:
        origin = found.get(event.get("step"))
        effect = _effect(run, event, course, (harm, ruin, worse))
        if origin is None and event["times"] > 1:  # an operation that leaps by itself needs no weight to explain it
            effect = replace(effect, weight=_weight(run, int(event["step"])))
        yield _finding(event, effect, origin)


@dataclass(frozen=True, slots=True)
class _Course:
    """The loss and the gradient norm of each step."""

    lost: Series
    norm: Series

    def risen(self, step: int) -> float:
        """How many times the largest value of before one of them has at `step` or soon after; 1 where that cannot be told."""
        return max(_risen(series, step) for series in (self.lost, self.norm))


def _risen(series: Series, step: int) -> float:
    before, after = np.abs(series.values[series.steps < step]), np.abs(series.window(step, step + SOON))
    most = before[np.isfinite(before)].max(initial=0.0)
    return float(after.max() / most) if len(after) and most > 0 else 1.0


def _changed(series: Series, step: int) -> float:
    """The median of the steps from `step` on over that of as many before."""
    before, after = series.window(step - LASTING, step - 1), series.window(step, step + LASTING)
    usual = float(np.median(np.abs(before))) if len(before) else 0.0
    return float(np.median(np.abs(after)) / usual) if len(after) and usual > 0 else 1.0


@dataclass(frozen=True, slots=True)
class _Effect:
    """What came of a leap; `weight` is a parameter that has leapt itself, and by how much."""

    severity: Severity
    text: str
    weight: tuple[Site, float] | None = None


def _effect(run: Run, event: Mapping[str, Any], course: _Course, bounds: tuple[float, float, float]) -> _Effect:
    harm, ruin, worse = bounds
    step = int(event["step"])
    if event["times"] > 1:
        risen = course.risen(step)
        severity: Severity = "error" if risen > ruin else "warning" if risen > harm else "info"
        size = "became non-finite" if np.isinf(risen) else f"rose to {risen:.3g} times its largest so far"
        return _Effect(severity, f", and the loss or the gradient norm {size}" if risen > harm else ", without harm so far")
    if not _lasts(run, event, step):
        return _Effect("info", ", for a moment")
    lost, norm = _changed(course.lost, step), _changed(course.norm, step)
    if lost > worse or not 1 / harm < norm < harm:
        return _Effect("warning", f", stays so, and the loss is {lost:.3g} times, the gradient norm {norm:.3g} times what it was")
    return _Effect("info", ", and stays so, without harm so far")


def _lasts(run: Run, event: Mapping[str, Any], step: int) -> bool:
    site = next((s for s in run.sites if s.name == event["site"]), None)
    later = Series(*_empty()) if site is None else column(run, site, "absmax").present
    values = later.values[later.steps > step][:LASTING]
    return len(values) >= LASTING and bool((values < event["usual"] / 100).all())


def _empty() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.zeros(0, np.int64), np.zeros(0)


def _weight(run: Run, step: int) -> tuple[Site, float] | None:
    """The parameter that has grown most since the step before, if that is much and it is larger now than any was before."""
    sites = sites_of(run, "param")
    steps = [int(s) for s in run.steps if s <= step][-2:]
    if len(steps) < 2 or not sites:
        return None
    table = run.matrix(sites, "absmax")
    now, before = (np.asarray(table.values)[np.searchsorted(table.steps, s)] for s in (steps[1], steps[0]))
    grown = np.divide(now, before, out=np.zeros_like(now), where=before > 0)
    most = int(np.nanargmax(np.where(np.isnan(grown), 0.0, grown)))
    return (sites[most], float(grown[most])) if grown[most] > WEIGHT and now[most] > np.nanmax(before) else None


def _finding(event: Mapping[str, Any], effect: _Effect, origin: Mapping[str, Any] | None) -> Finding:
    step, kind, times = int(event["step"]), str(event["kind"]), float(event["times"])
    entry = kind == "input" and not event["path"]
    outside = kind == "loss" or (entry and effect.weight is None)
    unseen = kind in ("loss", "output_grad") and origin is None and effect.weight is None
    where: Where = "optimizer" if effect.weight else "data" if entry else "loss" if kind == "loss" else "module"
    backward = kind == "output_grad" if origin is None else origin.get("direction") == "backward"
    phase: Phase = "optimizer" if effect.weight else "data" if entry else "backward" if backward else "forward"
    name = str(event["module"]) if effect.weight is None else effect.weight[0].full_module
    return Finding(
        rule="leap",
        severity="info" if unseen else effect.severity,
        message=_message(event, effect, times),
        first_step=step,
        last_step=step,
        where=where,
        phase=phase,
        site=str(event["site"]),
        module=None if outside and effect.weight is None else name,
        confidence=0.9 if origin is not None or effect.weight is not None else 0.6,
        causes=_CAUSES[times > 1],
        advice=_ADVICE[times > 1],
        evidence={"value": float(event["value"]), "usual": float(event["usual"]), "times": times},
    )


def _message(event: Mapping[str, Any], effect: _Effect, times: float) -> str:
    what = {"input": "the input of", "output": "the output of", "output_grad": "the gradient at the output of"}.get(str(event["kind"]), "")
    place = f"{what} {event['module']}" if what else "the loss"
    size = (
        f"reaches {event['value']:.3g} in magnitude, {times:.3g} times its largest"
        if times > 1
        else (f"has fallen to {event['value']:.3g} in magnitude, from {event['usual']:.3g} at least")
    )
    weight = ""
    if effect.weight is not None:
        site, grown = effect.weight
        weight = f"; parameter {site.full_path} has become {grown:.3g} times as large since the step before"
    return f"{place} {size} so far{effect.text}{weight}"


_CAUSES = {
    True: ("a batch far from all others", "a division by next to nothing, or exp of something large", "a weight that was overwritten"),
    False: ("a factor that has become 0, or next to it", "a unit whose inputs are all on the flat side of its activation"),
}
_ADVICE = {
    True: ("look at the operation named and at what went in", "bound its argument; look at the batch of this step"),
    False: ("look at the operation named and at what went in", "lower the learning rate, or use an activation that never is flat"),
}
