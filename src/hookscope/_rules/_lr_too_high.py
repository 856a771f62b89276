"""Early updates are as large as the weights they change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .._core._finding import Finding
from .._record import Run
from ._series import Series, loss, update_ratio

EARLY = 50


def lr_too_high(run: Run, *, ratio: float = 0.5, first_steps: int = 5, worse: float = 3.0, much_worse: float = 10.0) -> Iterator[Finding]:
    """The learning rate is too high: single updates are as large as the weights, and the loss gets worse.

    Fires when the median over weight matrices of rms(update) / rms(weight) exceeds `ratio` in one of the first `first_steps` steps, and
    the loss of one of the next 20 exceeds `worse` times the first, or the last ten are no lower than it; or when it exceeds `ratio` in 2
    of 3 of the first 50 steps, and the loss then exceeds `much_worse` times the first (source: the notes of Stanford's CS231n call 0.001
    usual; small sound models reach 0.05, so this bound is ten times that). A weight smaller than Glorot's initialisation, such as a
    zero-initialised one, counts as that large.

    Ignores later steps, vectors (biases, norms), and large updates that lower the loss.

    Causes: the learning rate; a loss summed instead of averaged; targets or inputs on a large scale.
    Do: divide the learning rate by about ratio / 0.01; warm it up; average the loss; standardise targets.
    """
    moved, lost = update_ratio(run), loss(run)
    early = Series(moved.steps[:EARLY], moved.values[:EARLY])
    high = np.flatnonzero(early.values > ratio)
    if len(high) == 0 or len(lost) < 2:
        return
    first = int(high[0])
    if first < first_steps and (harm := _harm(lost, int(early.steps[first]), worse)):
        yield _finding(early, Excess(first, int(high[high < first_steps][-1])), harm)
        return
    pairs = high[:-1][np.diff(high) <= 2]
    if len(pairs) and (harm := _rise(lost, int(early.steps[pairs[0]]), much_worse)):
        yield _finding(early, Excess(int(pairs[0]), int(high[-1])), harm)


@dataclass(frozen=True, slots=True)
class Excess:
    """Positions of the first and the last step above the bound."""

    first: int
    last: int


def _harm(lost: Series, since: int, worse: float) -> str:
    """What became of the loss, in words; empty where it is fine."""
    first, after = float(lost.values[0]), lost.values[lost.steps > since]
    if rose := _rise(lost, since, worse):
        return rose
    if 0 < first < np.inf and len(after) >= 20 and np.median(after[-10:]) >= first:
        return f"the loss, {first:.3g} at first, is {np.median(after[-10:]):.3g} in the last ten steps"
    return ""


def _rise(lost: Series, since: int, factor: float) -> str:
    first, after = float(lost.values[0]), lost.values[lost.steps > since][:20]
    finite = after[np.isfinite(after)]
    if not np.isfinite(first) or first <= 0 or len(finite) == 0 or finite.max() <= factor * first:
        return ""
    return f"the loss rose from {first:.3g} to {finite.max():.3g} within {len(after)} steps"


def _finding(early: Series, excess: Excess, harm: str) -> Finding:
    window = early.values[excess.first : excess.last + 1]
    largest, step = float(window[np.isfinite(window)].max(initial=0.0)), int(early.steps[excess.first])
    return Finding(
        rule="lr-too-high",
        severity="error",
        message=f"the update of step {step} is {window[0]:.3g} times the size of the weights (usual is 0.001 to 0.05), and {harm}",
        first_step=step,
        last_step=int(early.steps[excess.last]),
        where="optimizer",
        phase="optimizer",
        confidence=0.9,
        causes=("the learning rate is too high", "the loss is summed instead of averaged", "targets or inputs on a large scale"),
        advice=(
            f"divide the learning rate by {'about ' + format(window[0] / 0.01, '.0f') if window[0] < 10 else '1,000 or more'}",
            "average the loss over the batch; standardise inputs and targets",
            "warm the learning rate up",
        ),
        evidence={"largest_ratio": largest, "ratios": [float(v) for v in early.values[:20]]},
    )
