"""What follows from the sums of the units: pure functions of `UnitStats`, an array of [units] or a number each."""

from __future__ import annotations

import numpy as np

from ..._core._errors import UsageError
from ..._core._names import near
from ..._stats._unit_stats import RANGES, Floats, UnitStats

REDO_EPSILON = 1e-9
# Below the smallest normal number of a format, above its largest. bfloat16 has the exponents of float32.
HEADROOM = {
    "float32": ("tiny_float32", None),
    "bfloat16": ("tiny_float32", "over_bfloat16"),
    "float16": ("tiny_float16", "over_float16"),
    "float8_e4m3": ("tiny_e4m3", "over_e4m3"),
    "float8_e5m2": ("tiny_float16", "over_e5m2"),
}


def share(counts: Floats, stats: UnitStats) -> Floats:
    """Of the finite values; NaN for a unit without any."""
    return counts / np.where(stats.n > 0, stats.n, np.nan)


def firing(stats: UnitStats) -> Floats:
    """Share of values above 0."""
    return share(stats.positive, stats)


def rectified(kind: str, stats: UnitStats) -> bool:
    """Whether a unit can be dead: behind a rectifier module, or where nothing is below 0 and something is 0."""
    return kind == "rectifier" or (kind == "other" and bool((stats.min >= 0).all()) and bool(stats.zero.any()))


def scores(stats: UnitStats) -> Floats:
    """Mean magnitude over the layer's mean of it."""
    mean = share(stats.abs, stats)
    known = mean[np.isfinite(mean)]
    return mean / ((known.mean() if len(known) else np.nan) + REDO_EPSILON)


def rms(stats: UnitStats) -> Floats:
    """Root mean square."""
    return np.sqrt(_mean_square(stats))


def treves_rolls(stats: UnitStats) -> Floats:
    """(1 - mean|a|^2 / mean a^2) n / (n - 1); NaN for a unit of nothing but zeros."""
    squares = _mean_square(stats)
    level = share(stats.abs, stats) ** 2 / np.where(squares > 0, squares, np.nan)
    found: Floats = (1 - level) * stats.n / np.where(stats.n > 1, stats.n - 1, np.nan)
    return found


def kurtosis(stats: UnitStats) -> Floats:
    """m4 / m2^2."""
    found: Floats = stats.m4 * stats.n / np.where(stats.m2 > 0, stats.m2, np.nan) ** 2
    return found


def kurtosis_of_units(stats: UnitStats) -> float:
    """mean(r^4) / mean(r^2)^2 over units with r their rms."""
    squares = _mean_square(stats)
    known = squares[np.isfinite(squares)]
    return float((known**2).mean() / known.mean() ** 2) if known.any() else float("nan")


def headroom(stats: UnitStats, dtype: str) -> tuple[float, float]:
    """Shares below the smallest normal and above the largest number of a format."""
    if dtype not in HEADROOM:
        hint = f"did you mean {' or '.join(map(repr, near(dtype, HEADROOM)))}?" if near(dtype, HEADROOM) else "choose one of"
        raise UsageError(f"no format is called {dtype!r}: {hint} ({', '.join(HEADROOM)})")
    total = float(stats.n.sum())
    below, above = (0.0 if name is None else float(stats.ranges[RANGES.index(name)]) for name in HEADROOM[dtype])
    return (below / total, above / total) if total else (float("nan"), float("nan"))


def _mean_square(stats: UnitStats) -> Floats:
    return stats.mean**2 + share(stats.m2, stats) + np.where(stats.n > 0, 0.0, np.nan)
