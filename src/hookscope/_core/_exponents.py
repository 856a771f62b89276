"""How the magnitudes of a tensor are spread: counts by binary exponent, which merge exactly and bound every quantile within a factor of 2.

A bin holds the finite elements with 2**k <= |x| < 2**(k + 1), for k from -149 to 127: every float32, float16 and bfloat16 that is neither
0 nor Inf, subnormals too. Only float64 reaches beyond, and shares one bin below and one above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._errors import UsageError

LOWEST, HIGHEST = -149, 127  # exponents with a bin of their own
BINS = HIGHEST - LOWEST + 3  # with the one below at 0 and the one above at the end
ZEROS, NAN, INF = BINS, BINS + 1, BINS + 2
SLOTS = BINS + 3

EDGES = np.array([0.0, *(math.ldexp(1.0, k) for k in range(LOWEST, HIGHEST + 2)), math.inf])  # bin i runs from EDGES[i] to EDGES[i + 1]


class Format(NamedTuple):
    """A floating format: its smallest positive number, its smallest at full precision, and a power of two that it cannot reach."""

    tiny: float
    normal: float
    beyond: float


# IEEE 754-2019, table 3.5 (fp16); Wang and Kanwar 2019 (bf16); OCP 8-bit floating point specification 1.0, table 2 (the others).
FORMATS = {
    "float16": Format(2.0**-24, 2.0**-14, 2.0**16),
    "bfloat16": Format(2.0**-133, 2.0**-126, 2.0**128),
    "float8_e4m3": Format(2.0**-9, 2.0**-6, 2.0**9),
    "float8_e5m2": Format(2.0**-16, 2.0**-14, 2.0**16),
}


@dataclass(frozen=True, slots=True, eq=False)
class Exponents:
    """The counts of one tensor, or of any number of tensors merged.

    `counts` is [282] int64: 279 bins, the lowest first, then the number of zeros, of NaN and of Inf.

    >>> import numpy as np
    >>> e = Exponents.of_magnitudes(np.array([0.0, 1.0, 1.5, 3.0, 1e-8, 1e5]))
    >>> e.count, e.zeros, e.quantile(0.5)
    (6, 1, (1.0, 2.0))
    >>> e.underflow("float16"), e.overflow("float16")
    (0.2, 0.2)
    """

    counts: NDArray[np.int64]

    @classmethod
    def of_magnitudes(cls, values: NDArray[np.floating]) -> Exponents:
        """The counts of an array, by numpy's own frexp; the sign does not matter."""
        size = np.abs(np.asarray(values, np.float64)).ravel()
        finite = size[np.isfinite(size) & (size > 0)]
        bins = np.clip(np.frexp(finite)[1] - 1, LOWEST - 1, HIGHEST + 1) - (LOWEST - 1)
        odd = [(size == 0).sum(), np.isnan(size).sum(), np.isinf(size).sum()]
        return cls(np.concatenate([np.bincount(bins, minlength=BINS), odd]).astype(np.int64))

    @property
    def count(self) -> int:
        """All elements."""
        return int(self.counts.sum())

    @property
    def zeros(self) -> int:
        """Elements that are 0 or -0."""
        return int(self.counts[ZEROS])

    @property
    def nan(self) -> int:
        """Elements that are NaN."""
        return int(self.counts[NAN])

    @property
    def inf(self) -> int:
        """Elements that are Inf or -Inf."""
        return int(self.counts[INF])

    def merge(self, other: Exponents) -> Exponents:
        """The counts of both taken together."""
        return Exponents(self.counts + other.counts)

    def share_below(self, x: float) -> float:
        """The share of the finite non-zero elements with |element| < x, NaN where there are none.

        Exact where x is a power of two from 2**-149 to 2**128. Between two of them it is at least this: of the bin that holds x nothing is
        counted.
        """
        whole = int(np.searchsorted(EDGES, x, "right")) - 1
        return self._share(slice(0, max(min(whole, BINS), 0)))

    def share_above(self, x: float) -> float:
        """The share of the finite non-zero elements with |element| >= x; exact for the same x, and elsewhere at least this."""
        return self._share(slice(int(np.searchsorted(EDGES, x, "left")), BINS))

    def underflow(self, dtype: str) -> float:
        """The share of the finite non-zero elements that become 0 in a format: those below half its smallest number.

        `dtype` is `float16`, `bfloat16`, `float8_e4m3` or `float8_e5m2`. An element of exactly half that number becomes 0 as well and is
        not counted.
        """
        return self.share_below(_format(dtype).tiny / 2)

    def imprecise(self, dtype: str) -> float:
        """The share of the finite non-zero elements below a format's smallest normal number, where it has few digits left or none."""
        return self.share_below(_format(dtype).normal)

    def overflow(self, dtype: str) -> float:
        """At least this share of the finite non-zero elements is too large for a format: those from the first power of two it lacks.

        What lies between its largest number and that power is not counted: above 65504 for `float16`, 448 for `float8_e4m3`, 57344 for
        `float8_e5m2`.
        """
        return self.share_above(_format(dtype).beyond)

    def quantile(self, q: float) -> tuple[float, float]:
        """Bounds of a quantile of the magnitudes: low <= |element| < high, where high is 2 * low.

        The element meant is the smallest of which a share of at least `q` is no larger, among all that are not NaN, as in
        `numpy.quantile(..., method="inverted_cdf")`. Zeros give (0, 0), Inf gives (inf, inf), no element gives (nan, nan); float64 below
        2**-149 gives (0, 2**-149) and from 2**128 on (2**128, inf).
        """
        if not 0 <= q <= 1:
            raise UsageError(f"q={q!r}: a quantile is from 0 to 1")
        ordered = np.concatenate([self.counts[[ZEROS]], self.counts[:BINS], self.counts[[INF]]])
        ranks = np.cumsum(ordered)
        if not ranks[-1]:
            return math.nan, math.nan
        place = int(np.searchsorted(ranks, max(math.ceil(q * int(ranks[-1])), 1)))
        if place in (0, BINS + 1):
            return (0.0, 0.0) if place == 0 else (math.inf, math.inf)
        return float(EDGES[place - 1]), float(EDGES[place])

    def _share(self, bins: slice) -> float:
        finite = int(self.counts[:BINS].sum())
        return int(self.counts[bins].sum()) / finite if finite else math.nan


def _format(dtype: str) -> Format:
    if dtype not in FORMATS:
        raise UsageError(f"{dtype!r} is no format whose range is known: choose one of {', '.join(FORMATS)}")
    return FORMATS[dtype]
