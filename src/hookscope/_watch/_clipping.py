"""What a training loop has done to the gradients between the end of backward and the optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .._core._stats import Rows

SAME = 1e-5  # a norm that differs by less has been left alone: unscaling rounds in half precision, clipping does not stop here


@dataclass(frozen=True, slots=True)
class Clip:
    """The factor on their common norm (1.0: nothing was done), and, where they were clipped by value and nothing else, the limit."""

    factor: float = 1.0
    value: float | None = None


def clipping(before: Rows, after: Rows) -> Clip | None:
    """From the stats of the same gradients, unscaled; None where it cannot be known, as of NaN and Inf."""
    if before[:, 1:3].any() or after[:, 1:3].any():
        return None
    norms = np.sqrt(before[:, 5]), np.sqrt(after[:, 5])
    whole = tuple(math.sqrt(float(np.square(norm).sum())) for norm in norms)
    if whole[0] == 0 or abs(whole[1] / whole[0] - 1) < SAME:
        return Clip()
    evenly = np.allclose(norms[1], norms[0] * (whole[1] / whole[0]), rtol=1e-3, atol=1e-12)
    return Clip(whole[1] / whole[0], None if evenly else _limit(before, after))


def _limit(before: Rows, after: Rows) -> float | None:
    """The limit of a clipping by value; None where the extremes of the gradients are not those that it leaves."""
    extremes = [rows[after[:, 0] > 0, 6:8] for rows in (before, after)]
    limit = float(np.abs(extremes[1]).max())
    return limit if np.allclose(extremes[1], np.clip(extremes[0], -limit, limit), rtol=1e-3, atol=1e-12) else None
