"""What is known of each unit of a layer, and how it merges: over batches, runs and ranks, in any order.

Moments are central ones, merged by the pairwise formulas of Chan et al. (1979) and Pébay (2008): sums of powers would lose the digits
where a mean is large beside its spread.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RANGES = ("tiny_float32", "tiny_float16", "tiny_e4m3", "over_e4m3", "over_e5m2", "over_float16", "over_bfloat16")


@dataclass(frozen=True, slots=True, eq=False)
class UnitStats:
    """One number per unit, each array of shape [units]; `ranges` is for the layer.

    `n` counts the finite values and `nonfinite` the others, which enter nothing else. `m2`, `m3` and `m4` are sums of powers of the
    differences from `mean`; `abs` sums the magnitudes; `positive`, `zero` and `large` (6.0 and more) count. Counts are whole numbers kept
    as floats, exact up to 2**53. Without a value, `min` is inf and `max` is -inf. `ranges` counts values that are not 0 and below the
    smallest normal number of a format, or above its largest.
    """

    n: Floats
    nonfinite: Floats
    mean: Floats
    m2: Floats
    m3: Floats
    m4: Floats
    abs: Floats
    min: Floats
    max: Floats
    positive: Floats
    zero: Floats
    large: Floats
    ranges: Floats

    @property
    def units(self) -> int:
        """How many there are."""
        return len(self.n)

    def merge(self, other: UnitStats) -> UnitStats:
        """The stats of both together, unit by unit."""
        moments = _merged_moments(self, other)
        added = {k: getattr(self, k) + getattr(other, k) for k in ("nonfinite", "abs", "positive", "zero", "large", "ranges")}
        return UnitStats(**moments, **added, min=np.minimum(self.min, other.min), max=np.maximum(self.max, other.max))

    def pooled(self) -> UnitStats:
        """All units taken as one."""
        whole = self
        while whole.units > 1:  # in pairs: errors grow with the logarithm
            half = whole.units // 2
            whole = _joined(whole.among(slice(0, half)).merge(whole.among(slice(half, 2 * half))), whole.among(slice(2 * half, None)))
        return whole

    def among(self, units: Any) -> UnitStats:
        """Those of some units; the ranges, which are of the layer, stay."""
        return UnitStats(**{f.name: getattr(self, f.name)[units] for f in fields(self) if f.name != "ranges"}, ranges=self.ranges)


def _joined(one: UnitStats, other: UnitStats) -> UnitStats:
    names = [f.name for f in fields(UnitStats) if f.name != "ranges"]
    return UnitStats(**{k: np.concatenate([getattr(one, k), getattr(other, k)]) for k in names}, ranges=other.ranges)


def _merged_moments(a: UnitStats, b: UnitStats) -> dict[str, Floats]:
    n = a.n + b.n
    some = np.maximum(n, 1)
    wa, wb = a.n / some, b.n / some
    delta = np.where((a.n > 0) & (b.n > 0), b.mean - a.mean, 0.0)
    mean = np.where(wa >= wb, np.where(a.n > 0, a.mean, b.mean) + delta * wb, np.where(b.n > 0, b.mean, a.mean) - delta * wa)
    d2 = delta * delta
    m2 = a.m2 + b.m2 + d2 * wa * b.n
    m3 = a.m3 + b.m3 + delta * d2 * wa * b.n * (wa - wb) + 3 * delta * (wa * b.m2 - wb * a.m2)
    m4 = (
        a.m4
        + b.m4
        + d2 * d2 * wa * b.n * (wa * wa - wa * wb + wb * wb)
        + 6 * d2 * (wa * wa * b.m2 + wb * wb * a.m2)
        + 4 * delta * (wa * b.m3 - wb * a.m3)
    )
    return {"n": n, "mean": mean, "m2": m2, "m3": m3, "m4": m4}
