"""A series thinned to a few points, with its heights on a logarithmic scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ._measure import Measured
from ._view import Curve, Number

POINTS = 48
DECADE = 1.0  # a scale spans a factor ten at least, so that the noise of a healthy series looks flat

Floats = NDArray[np.float64]
Scale = tuple[float, float]


def curve(steps: Sequence[int] | NDArray[np.int64], measured: Measured, *, pick: Callable[..., float] = np.max) -> Curve | None:
    """`measured` (one column) over the steps in at most 48 points, each `pick`ed from its stretch of steps.

    A value that is not finite wins; None where nothing is present.
    """
    present = np.flatnonzero(measured.present)
    if not len(present):
        return None
    stretches = np.array_split(np.arange(present[0], len(measured.present)), min(POINTS, len(measured.present) - int(present[0])))
    values = tuple(_picked(measured.values[part][measured.present[part]], pick) for part in stretches)
    return Curve(tuple(int(steps[part[-1]]) for part in stretches), values, heights(values, scale(values)))


def _picked(values: Floats, pick: Callable[..., float]) -> Number:
    if not len(values):
        return None
    bad = values[~np.isfinite(values)]
    return float(bad[0]) if len(bad) else float(pick(values))


def scale(values: Sequence[Number]) -> Scale:
    """The least and the greatest log10 of the positive finite values, spread to a decade at least around their middle."""
    logs = [float(np.log10(v)) for v in values if v is not None and np.isfinite(v) and v > 0]
    low, high = (min(logs), max(logs)) if logs else (0.0, 0.0)
    lack = max(0.0, DECADE - (high - low)) / 2
    return low - lack, high + lack


def heights(values: Sequence[Number], between: Scale) -> tuple[Number, ...]:
    """Where each value stands on the scale: 0 for zero and below, NaN for what is not finite, None for what is absent."""
    low, high = between
    return tuple(None if v is None else _height(v, low, high) for v in values)


def _height(value: float, low: float, high: float) -> float:
    if not np.isfinite(value):
        return float("nan")
    return 0.0 if value <= 0 else float(np.clip((np.log10(value) - low) / (high - low), 0.0, 1.0))


def narrowed(heights: Sequence[Number], points: int) -> tuple[Number, ...]:
    """At most so many heights: the highest of each stretch, and NaN wherever a stretch has one."""
    if len(heights) <= points:
        return tuple(heights)
    return tuple(_highest([heights[i] for i in part]) for part in np.array_split(np.arange(len(heights)), points))


def _highest(heights: list[Number]) -> Number:
    present = [h for h in heights if h is not None]
    if any(np.isnan(h) for h in present):
        return float("nan")
    return max(present, default=None)
