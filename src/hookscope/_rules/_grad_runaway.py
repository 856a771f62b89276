"""The size of the whole gradient runs away, by the run's own measure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .._core._finding import Finding, Severity
from .._record import Run
from ._alarm import Alarm, alarms
from ._series import Series, gradient_norm, learning_rate, loss

EARLY = 50
GATE = 200
LR_HOLD = 50


def grad_runaway(run: Run, *, z: float = 6.0, ratio: float = 4.0, blow_up: float = 1e3, diverged: float = 3.0) -> Iterator[Finding]:
    """The global gradient norm leaves its usual range for good, or training diverges.

    Three ways to fire. Late, after 200 steps and twice the warm-up: 2 of 3 steps with a robust z-score of the log norm above `z` and
    `ratio` times the median of the last 200 (source: the score is that of Iglewicz and Hoaglin 1993, who take 3.5). Early: within 50 steps
    the norm grows by more than `blow_up` without falling back, and ends non-finite or with a loss above 10 times the first. At any time: a
    loss above `diverged` times its first value for 20 steps while the norm is 10 times what it was.

    Ignores single spikes, large but steady norms, zero gradients, the 50 steps after a change of the learning rate by 20 %, a loss that
    turns non-finite at once, and negative losses. After an alarm it is silent for 500 steps.

    Causes: too high a learning rate, a bad batch, too low a precision, no clipping.
    Do: lower the learning rate or warm it up, clip by the global norm, look at the batch of the first step named.
    """
    norm, lost = gradient_norm(run), loss(run)
    if len(norm) == 0:
        return
    early = _blow_up(norm, lost, blow_up) or _divergence(norm, lost, diverged)
    if early is not None:
        yield early
    positions = alarms(norm.values, z=z, ratio=ratio, start=max(GATE, 2 * _warm_up(run, norm)))
    for alarm in positions:
        if early is None and not _lr_changed(run, int(norm.steps[alarm.first])):
            yield _late(norm, lost, alarm)


def _warm_up(run: Run, norm: Series) -> int:
    """The number of steps until the learning rate first reaches its largest value; 0 where it falls from the start."""
    rate = learning_rate(run)
    return int(np.searchsorted(norm.steps, rate.steps[np.argmax(rate.values)])) if len(rate) else 0


def _lr_changed(run: Run, step: int) -> bool:
    recent = learning_rate(run).window(step - LR_HOLD, step)
    return bool(len(recent) and recent.max() > 1.2 * recent.min() and abs(recent[-1] - recent[0]) > 0.2 * recent[0])


def _blow_up(norm: Series, lost: Series, factor: float) -> Finding | None:
    """Growth in the first steps that never falls back below the last tenth reached."""
    values, steps = norm.values[:EARLY], norm.steps[:EARLY]
    finite = values[np.isfinite(values)]
    if len(finite) < 3 or finite[0] <= 0:
        return None
    peak = int(np.argmax(finite))
    low = int(np.argmin(finite[: peak + 1]))
    start = finite[low]
    rising = finite[low : peak + 1]
    steady = bool((rising[1:] >= 0.1 * np.maximum.accumulate(rising)[:-1]).all()) and len(rising) >= 3
    ended = len(finite) < len(values) or (len(lost) > 1 and lost.values[0] > 0 and lost.values[:EARLY].max() > 10 * lost.values[0])
    if not steady or not ended or start <= 0 or finite[peak] < factor * start:
        return None
    first = low + int(np.argmax(rising > 4 * start))
    if first == peak:
        return None  # one leap is a bad batch or a damaged weight, no instability that builds up
    text = f"the global gradient norm blew up from {start:.3g} at step {steps[low]} to {finite[peak]:.3g} at step {steps[peak]}"
    return _finding("error", text, (int(steps[first]), int(steps[peak])), {"start": float(start), "peak": float(finite[peak])})


def _divergence(norm: Series, lost: Series, factor: float) -> Finding | None:
    """20 steps in a row with a loss above `factor` times the first, and a gradient 10 times the first."""
    if len(lost) < 25 or len(norm) < 25:
        return None
    first, usual = float(np.median(lost.values[:3])), float(np.median(norm.values[:10]))
    if not (0 < first < np.inf and 0 < usual < np.inf):
        return None
    # A loss that turns non-finite, from one step to the next, has not diverged: something else broke it.
    high = np.isfinite(lost.values) & (lost.values > factor * first)
    streak = np.convolve(high, np.ones(20), "valid") >= 20
    if not streak.any():
        return None
    begin = int(np.argmax(streak))
    steps = (int(lost.steps[begin]), int(lost.steps[begin + 19]))
    size = norm.window(*steps)
    if len(size) == 0 or np.median(size) < 10 * usual:
        return None
    reached = float(np.median(lost.values[begin : begin + 20]))
    text = f"training diverged: the loss stays above {factor:g} times its first value ({reached:.3g} against {first:.3g}) for 20 steps"
    evidence = {"first_loss": first, "loss": reached, "first_norm": usual, "norm": float(np.median(size))}
    return _finding("error", f"{text}, the gradient norm at {np.median(size):.3g} against {usual:.3g}", steps, evidence)


def _late(norm: Series, lost: Series, alarm: Alarm) -> Finding:
    steps = (int(norm.steps[alarm.first]), int(norm.steps[alarm.last]))
    before, during = lost.window(steps[0] - 50, steps[0] - 1), lost.window(steps[0], steps[1] + 4)
    worse = bool(len(before) and len(during) and during.max() > 2 * abs(np.median(before)))
    times = f"{alarm.value / alarm.usual:.3g} times" if np.isfinite(alarm.value) else "non-finite against"
    text = f"the global gradient norm ran away to {alarm.value:.3g}, {times} its usual {alarm.usual:.3g} over the 200 steps before"
    evidence = {"value": alarm.value, "usual": alarm.usual, "loss_followed": worse}
    return _finding("error" if worse else "warning", text + (", and the loss followed" if worse else ""), steps, evidence)


def _finding(severity: Severity, text: str, steps: tuple[int, int], evidence: dict[str, float]) -> Finding:
    return Finding(
        rule="grad-runaway",
        severity=severity,
        message=text,
        first_step=steps[0],
        last_step=steps[1],
        where="optimizer",
        phase="optimizer",
        confidence=0.8,
        causes=("the learning rate is too high, or rose too fast", "a batch far from all others", "no clipping, or too low a precision"),
        advice=(
            "lower the learning rate, or warm it up",
            "clip by the global norm (torch.nn.utils.clip_grad_norm_)",
            f"look at the batch of step {steps[0]}, and go back to a checkpoint from before it",
        ),
        evidence=evidence,
    )
