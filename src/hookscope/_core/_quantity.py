"""Quantities: numbers derived from stats when reading, vectorised over rows."""

from __future__ import annotations

import difflib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ._errors import UsageError
from ._stats import Rows

Values = NDArray[np.float64]


def _finite(rows: Rows) -> Values:
    return rows[:, 0] - rows[:, 1] - rows[:, 2]


def _per_finite(total: Values, rows: Rows) -> Values:
    """total / number of finite elements; NaN where there are none."""
    n = _finite(rows)
    per_element: Values = np.divide(total, n, out=np.full(len(rows), np.nan), where=n > 0)
    return per_element


def _std(rows: Rows) -> Values:
    mean = _per_finite(rows[:, 4], rows)
    return np.sqrt(np.maximum(_per_finite(rows[:, 5], rows) - mean * mean, 0.0))


def _extreme(column: int) -> Callable[[Rows], Values]:
    """min or max; NaN where every element is NaN or there is none."""
    return lambda rows: np.where(rows[:, 6] <= rows[:, 7], rows[:, column], np.nan)


QUANTITIES: dict[str, Callable[[Rows], Values]] = {
    "count": lambda r: r[:, 0].copy(),
    "mean": lambda r: _per_finite(r[:, 4], r),
    "std": _std,
    "rms": lambda r: np.sqrt(_per_finite(r[:, 5], r)),
    "l2": lambda r: np.sqrt(r[:, 5]),
    "min": _extreme(6),
    "max": _extreme(7),
    "absmax": lambda r: np.where(r[:, 6] <= r[:, 7], np.maximum(np.abs(r[:, 6]), np.abs(r[:, 7])), np.nan),
    "sum": lambda r: r[:, 4].copy(),
    "zeros": lambda r: r[:, 3].copy(),
    "sparsity": lambda r: np.divide(r[:, 3], r[:, 0], out=np.full(len(r), np.nan), where=r[:, 0] > 0),
    "nan": lambda r: r[:, 1].copy(),
    "inf": lambda r: r[:, 2].copy(),
    "nonfinite": lambda r: r[:, 1] + r[:, 2],
}
EXTENSIVE = frozenset({"count", "l2", "sum", "zeros", "nan", "inf", "nonfinite"})


def quantity(name: str, rows: Rows, scale: float = 1.0) -> Values:
    """One value a row. mean, std (population), rms and l2 speak of the finite elements.

    `scale` is elements per sampled element: where a site reads only a sample, totals (`count`, `l2`, ...) are extrapolated by it.
    """
    try:
        derive = QUANTITIES[name]
    except KeyError:
        near = difflib.get_close_matches(name, QUANTITIES, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"unknown quantity {name!r}: {hint}choose one of {', '.join(QUANTITIES)}") from None
    values = derive(rows)
    if scale != 1.0 and name in EXTENSIVE:
        values = values * (np.sqrt(scale) if name == "l2" else scale)
    return values
