"""One layer of an analysis: what was added up there, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..._stats._unit_stats import Floats, UnitStats
from . import _metrics, _spectrum
from ._moment import Moment
from ._spectrum import Spectrum

Bools = NDArray[np.bool_]
Part = TypeVar("Part", Moment, "Bounded")


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """Per unit: how many values lie beyond 0.95 of the half range, and the sum of the distances from its middle in half ranges."""

    low: float
    high: float
    beyond: Floats
    reach: Floats

    def merge(self, other: Bounded) -> Bounded:
        """Both together."""
        return replace(self, beyond=self.beyond + other.beyond, reach=self.reach + other.reach)


@dataclass(frozen=True, slots=True, eq=False)
class Massive:
    """Per unit, how many values exceed 100 and a thousand times the median magnitude of their batch; the largest, and its multiple."""

    count: Floats
    top: float
    ratio: float

    def merge(self, other: Massive) -> Massive:
        """Both together."""
        return Massive(self.count + other.count, max(self.top, other.top), max(self.ratio, other.ratio))


@dataclass(frozen=True, slots=True, eq=False)
class After:
    """The activation that takes this layer's output: its name, kind and units."""

    name: str
    kind: str
    stats: UnitStats


@dataclass(frozen=True, eq=False)
class Layer:
    """What passed one place of the model, and every number that follows from it.

    `name` is the module's path, with the way into a structured output (`lstm[1][0]`) and, for a module without parameters that runs
    several times, the call (`act@1`). `kind` is `rectifier`, `bounded` or `other`; `after` the activation module that takes this output,
    directly or through norms and dropout: `dead`, `near_dead`, `dormant` and `sparsity` speak of what is read there. Where an activation
    is a function, not a module, they speak of what is seen here. `same_as` names the layer that returned this very tensor.

    Per unit, arrays of [units]: `dead`, `near_dead()`, `dormant()`, `scores`, `sparsity`, `treves_rolls`, `kurtosis`, `rms`, `saturated`,
    `phi`, `range_use`, `large_share`. Of the layer, numbers: `kurtosis_all`, `kurtosis_of_units`, `headroom(...)`, and from the spectrum,
    NaN where none was read: `participation_ratio`, `effective_rank`, `rankme`, `stable_rank`, `srank()`, `top_share()`,
    `delve_saturation()`.
    """

    name: str
    path: str
    cls: str
    kind: str
    stats: UnitStats
    massive: Massive
    bounded: Bounded | None = None
    moment: Moment | None = None
    saved: Spectrum | None = None
    after: After | None = None
    same_as: str | None = None

    @property
    def units(self) -> int:
        """Channels or features."""
        return self.stats.units

    @property
    def positions(self) -> int:
        """How many values each unit gave at most, those that are not finite included."""
        return int((self.stats.n + self.stats.nonfinite).max(initial=0))

    @property
    def read_at(self) -> UnitStats:
        """The units behind the activation that follows, where there is one."""
        return self.stats if self.after is None else self.after.stats

    @property
    def rectified(self) -> bool:
        """Whether a unit here can be dead: a rectifier module, or what is never below 0 and often 0."""
        return _metrics.rectified(self.kind if self.after is None else self.after.kind, self.read_at)

    @property
    def dead(self) -> Bools:
        """Units that never exceed 0, behind a rectifier: for a ReLU, 0 on every sample. Nowhere else is a unit called dead."""
        found: Bools = (self.read_at.positive == 0) & (self.read_at.n > 0) & self.rectified
        return found

    def near_dead(self, rate: float = 1e-3) -> Bools:
        """Units that exceed 0 in at most `rate` of the positions, behind a rectifier; and units that are constant, anywhere."""
        silent = (_metrics.firing(self.read_at) <= rate) & self.rectified
        found: Bools = (silent | (self.stats.min == self.stats.max)) & (self.stats.n > 1)
        return found

    @property
    def scores(self) -> Floats:
        """Mean magnitude of a unit over the layer's mean of it: Sokar et al., 2023."""
        return _metrics.scores(self.read_at)

    def dormant(self, tau: float = 0.025) -> Bools:
        """Units whose score is at most `tau` (ReDo); 0.025 and 0.1 are those of the paper."""
        return self.scores <= tau

    @property
    def sparsity(self) -> Floats:
        """Share of exact zeros."""
        return _metrics.share(self.read_at.zero, self.read_at)

    @property
    def treves_rolls(self) -> Floats:
        """Lifetime sparseness, 0 for a unit that always gives the same magnitude, 1 for one that fires once."""
        return _metrics.treves_rolls(self.read_at)

    @property
    def kurtosis(self) -> Floats:
        """Fourth central moment over the squared second: 3 for normal values; NaN for a constant unit."""
        return _metrics.kurtosis(self.stats)

    @cached_property
    def kurtosis_all(self) -> float:
        """Kurtosis of all values of the layer taken together."""
        return float(_metrics.kurtosis(self.stats.pooled())[0])

    @property
    def kurtosis_of_units(self) -> float:
        """mean(r^4) / mean(r^2)^2 over the rms of the units: 1 where all are alike, the number of units where one stands out."""
        return _metrics.kurtosis_of_units(self.stats)

    @property
    def rms(self) -> Floats:
        """Root mean square of a unit."""
        return _metrics.rms(self.stats)

    @property
    def saturated(self) -> Floats | None:
        """Share of values beyond 0.95 of the half range of a bounded activation, this one or the one that follows."""
        return None if self.bounded is None else _metrics.share(self.bounded.beyond, self.read_at)

    @property
    def phi(self) -> Floats | None:
        """Mean distance from the middle of the range in half ranges, 0.5 where uniform, 1 where saturated.

        Rakitianskaia and Engelbrecht, 2015, with infinitely many bins.
        """
        return None if self.bounded is None else _metrics.share(self.bounded.reach, self.read_at)

    @property
    def range_use(self) -> Floats | None:
        """The part of the range of a bounded activation between a unit's least and largest value."""
        if self.bounded is None:
            return None
        return (self.read_at.max - self.read_at.min) / (self.bounded.high - self.bounded.low)

    @property
    def large_share(self) -> Floats:
        """Share of values of magnitude 6 and more."""
        return _metrics.share(self.stats.large, self.stats)

    def headroom(self, dtype: str) -> tuple[float, float]:
        """The shares of values that are not 0 yet below the smallest normal number of a format, and of those above its largest.

        `dtype`: float32, bfloat16, float16, float8_e4m3 or float8_e5m2, unscaled.
        """
        return _metrics.headroom(self.stats, dtype)

    @cached_property
    def spectrum(self) -> Spectrum | None:
        """Of the second moment, or as it was saved without it; None where none was read."""
        return self.saved if self.moment is None else _spectrum.spectrum(self.moment)

    @property
    def eigenvalues(self) -> Floats:
        """Of the covariance of the units, falling; empty where no spectrum was read."""
        return np.empty(0) if self.spectrum is None else self.spectrum.values

    @property
    def participation_ratio(self) -> float:
        """(tr C)^2 / tr(C^2)."""
        return float("nan") if self.spectrum is None else self.spectrum.participation

    @property
    def effective_rank(self) -> float:
        """exp of the entropy of the singular values about the mean: Roy and Vetterli, 2007."""
        return _spectrum.effective_rank(np.sqrt(self.eigenvalues))

    @property
    def rankme(self) -> float:
        """The same about 0, as RankMe (Garrido et al., 2023) has it, without its small constant."""
        return float("nan") if self.spectrum is None else _spectrum.effective_rank(np.sqrt(self.spectrum.about_zero))

    @property
    def stable_rank(self) -> float:
        """Sum of the eigenvalues over the largest."""
        return _spectrum.stable_rank(self.eigenvalues)

    def srank(self, delta: float = 0.01) -> float:
        """The least k whose singular values have 1 - delta of the sum: Kumar et al., 2021."""
        return _spectrum.srank(np.sqrt(self.eigenvalues), delta)

    def top_share(self, k: int = 1) -> float:
        """Share of the variance along the k largest directions."""
        return _spectrum.top_share(self.eigenvalues, k)

    def delve_saturation(self, share: float = 0.99) -> float:
        """Share of directions that `share` of the variance needs: Richter and Shenk."""
        return _spectrum.delve_saturation(self.eigenvalues, share)

    def merge(self, other: Layer) -> Layer:
        """Both together; the same model elsewhere, or on other data."""
        same = self.after is not None and other.after is not None and self.after.name == other.after.name
        after = replace(self.after, stats=self.after.stats.merge(other.after.stats)) if same and self.after and other.after else None
        return replace(
            self,
            stats=self.stats.merge(other.stats),
            massive=self.massive.merge(other.massive),
            bounded=_both(self.bounded, other.bounded),
            moment=_both(self.moment, other.moment),
            after=after,
        )


def _both(one: Part | None, other: Part | None) -> Part | None:
    return None if one is None or other is None else one.merge(other)
