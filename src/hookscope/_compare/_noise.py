"""How far two series are apart in units of their own step-to-step variation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
FLOOR = 0.01  # of the value: a smooth series varies so little from step to step that any difference would be many times that
CONSISTENT = 1.4826  # the standard deviation of a normal variable over its median absolute deviation


def variation(values: Values) -> float:
    """The standard deviation of one step's value, from the differences of neighbours, which a slow drift does not enter; robust."""
    steps = np.diff(values[np.isfinite(values)])
    return float(CONSISTENT * np.median(np.abs(steps)) / np.sqrt(2.0)) if len(steps) else 0.0


def score(a: Values, b: Values, *, elements: float = 0.0) -> float:
    """The median difference over the noise of a single value: its variation from step to step, pooled over both series, together with
    1 / sqrt(2n) of it, by which the rms of n independent elements varies from draw to draw, and at least a hundredth of it.

    About 1 is what two steps of one run, or two draws of the same weights, have between them; NaN or Inf on one side alone is infinite.
    """
    if (np.isfinite(a) != np.isfinite(b)).any():
        return float("inf")
    fine = np.isfinite(a) & np.isfinite(b)
    if not fine.any():
        return 0.0
    size = float(np.median(np.abs(np.concatenate([a[fine], b[fine]]))))
    drawn = size / np.sqrt(2.0 * elements) if elements else 0.0
    noise = max(float(np.hypot(np.hypot(variation(a), variation(b)) / np.sqrt(2.0), drawn)), FLOOR * size)
    apart = float(np.median(np.abs(b[fine] - a[fine])))
    return apart / noise if noise else float("inf") if apart else 0.0
