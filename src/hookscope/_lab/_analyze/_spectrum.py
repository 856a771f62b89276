"""What a spectrum says of a layer: how many directions it really uses.

`eigenvalues` are those of a covariance, `singular` values those of the rows; both in falling order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ._moment import SKETCH, Floats, Moment


@dataclass(frozen=True, slots=True, eq=False)
class Spectrum:
    """Eigenvalues of the covariance, and of the second moment about 0; `participation` is not taken from them, which a sketch bends."""

    values: Floats
    about_zero: Floats
    participation: float


def spectrum(moment: Moment) -> Spectrum:
    """Of the rows that were added up."""
    return Spectrum(eigenvalues(moment), eigenvalues(moment, centred=False), participation_ratio(moment))


def eigenvalues(moment: Moment, *, centred: bool = True) -> Floats:
    """Of the covariance (scatter over n - 1), or of the second moment about 0 times n over n - 1; falling, none below 0."""
    matrix = moment.scatter if centred else moment.scatter + moment.n * np.outer(moment.mean, moment.mean)
    values = np.linalg.eigvalsh(matrix)[::-1].astype(np.float64)
    # Below the rounding of the largest there is only noise, and a square root would lift it.
    floor = np.finfo(np.float64).eps * len(values) * max(float(values[0]), 0.0) if len(values) else 0.0
    return np.where(values > floor, values, 0.0) / max(moment.n - 1, 1)


def participation_ratio(moment: Moment) -> float:
    """(tr C)^2 / tr(C^2), Gao et al., 2017: d where all directions are alike, 1 where there is one. Biased low below about 10 d rows.

    Of a sketch the expected excess of tr(C^2), tr(C)^2 / r + tr(C^2) / r, is taken out.
    """
    trace, squares = float(np.trace(moment.scatter)), float((moment.scatter**2).sum())
    if moment.sketched:
        squares = (squares - trace**2 / SKETCH) / (1 + 1 / SKETCH)
    return trace**2 / squares if squares > 0 else float("nan")


def effective_rank(singular: Floats) -> float:
    """exp of the entropy of the singular values, scaled to sum 1: Roy and Vetterli, 2007."""
    total = singular.sum()
    if not total > 0:
        return float("nan")
    p = singular[singular > 0] / total
    return float(np.exp(-(p * np.log(p)).sum()))


def stable_rank(values: Floats) -> float:
    """Sum of the eigenvalues over the largest: squared Frobenius over squared spectral norm."""
    return float(values.sum() / values[0]) if len(values) and values[0] > 0 else float("nan")


def srank(singular: Floats, delta: float = 0.01) -> float:
    """The least k whose largest singular values have 1 - delta of their sum: Kumar et al., 2021."""
    return _reaching(singular, 1 - delta)


def top_share(values: Floats, k: int = 1) -> float:
    """The share of the variance along the k largest directions."""
    return float(values[:k].sum() / values.sum()) if values.sum() > 0 else float("nan")


def delve_saturation(values: Floats, share: float = 0.99) -> float:
    """The share of directions needed for `share` of the variance: layer saturation, Richter and Shenk."""
    return _reaching(values, share) / len(values) if len(values) else float("nan")


def _reaching(values: Floats, share: float) -> float:
    total = values.sum()
    if not total > 0:
        return float("nan")
    return float(np.searchsorted(np.cumsum(values) / total, share - 1e-12) + 1)
