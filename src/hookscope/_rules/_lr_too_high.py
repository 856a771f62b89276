"""The first updates are as large as the weights they change."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .._core._finding import Finding
from .._record import Run
from ._series import Series, loss, update_ratio


def lr_too_high(run: Run, *, ratio: float = 0.5, first_steps: int = 5, worse: float = 3.0) -> Iterator[Finding]:
    """The learning rate is too high: single updates are as large as the weights, and the loss gets worse.

    Fires when, in one of the first `first_steps` steps, the median over weight matrices of rms(update) / rms(weight) exceeds `ratio`, and
    the loss of one of the next 20 steps exceeds `worse` times the first, or the last ten are no lower than it (source: rule R30; faults
    had 0.9 to 130, sound programs at most 0.45). A weight smaller than Glorot's initialisation, such as a zero-initialised one, counts
    as that large.

    Ignores later steps, vectors (biases, norms), and large updates that lower the loss.

    Causes: the learning rate; a loss summed instead of averaged; targets or inputs on a large scale.
    Do: divide the learning rate by about ratio / 0.01; warm it up; average the loss; standardise targets.
    """
    moved, lost = update_ratio(run), loss(run)
    early = Series(moved.steps[:first_steps], moved.values[:first_steps])
    high = np.flatnonzero(early.values > ratio)
    if len(high) == 0 or len(lost) < 2:
        return
    harm = _harm(lost, int(early.steps[high[0]]), worse)
    if harm:
        yield _finding(early, high, harm)


def _harm(lost: Series, since: int, worse: float) -> str:
    """What became of the loss, in words; empty where it is fine."""
    first = float(lost.values[0])
    after = lost.values[lost.steps > since]
    early = after[:20][np.isfinite(after[:20])]
    if not np.isfinite(first) or len(early) == 0:
        return ""
    if first > 0 and early.max() > worse * first:
        return f"the loss rose from {first:.3g} to {early.max():.3g} within {min(20, len(after))} steps"
    if len(after) >= 20 and np.median(after[-10:]) >= first:
        return f"the loss, {first:.3g} at first, is {np.median(after[-10:]):.3g} in the last ten steps"
    return ""


def _finding(early: Series, high: NDArray[np.intp], harm: str) -> Finding:
    largest = float(early.values[np.isfinite(early.values)].max())
    first = int(early.steps[high[0]])
    return Finding(
        rule="lr-too-high",
        severity="error",
        message=(
            f"the update of step {first} is {early.values[high[0]]:.3g} times the size of the weights (usual is 0.001 to 0.05), and {harm}"
        ),
        first_step=first,
        last_step=int(early.steps[high[-1]]),
        where="optimizer",
        phase="optimizer",
        confidence=0.9,
        causes=("the learning rate is too high", "the loss is summed instead of averaged", "targets or inputs on a large scale"),
        advice=(
            f"divide the learning rate by about {largest / 0.01:.0f}",
            "average the loss over the batch; standardise inputs and targets",
            "warm the learning rate up",
        ),
        evidence={"ratio": largest, "ratios": [float(v) for v in early.values]},
    )
