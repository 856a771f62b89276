"""What was measured at some sites of a run, with NaN, Inf and absence told apart.

The quantities of a run speak of the finite elements only, so that a tensor full of NaN has an l2 norm of 0: here a value is NaN
where any element was, and Inf where any was infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .._core._site import Kind, Site

if TYPE_CHECKING:
    from .._record import Run


@dataclass(frozen=True, slots=True)
class Measured:
    """Values [steps, ...] and where there are any."""

    values: NDArray[np.float64]
    present: NDArray[np.bool_]

    def __getitem__(self, columns: int | list[int]) -> Measured:
        return Measured(self.values[:, columns], self.present[:, columns])

    def at(self, row: int | None) -> float | None:
        """The value at that row, or with None the last there is; None where there is none (one column only)."""
        rows = np.flatnonzero(self.present) if row is None else [row] if self.present[row] else []
        return float(self.values[rows[-1]]) if len(rows) else None


def of_kind(sites: Sequence[Site], kind: Kind) -> list[Site]:
    """The sites of a kind in the sense that a user means without further words: no label."""
    return [site for site in sites if site.kind == kind and not site.label]


def measure(run: Run, sites: Sequence[Site], quantity: str) -> Measured:
    """One quantity at these sites, one column each."""
    if not sites or not len(run.steps):
        shape = (len(run.steps), len(sites))
        return Measured(np.zeros(shape), np.zeros(shape, dtype=bool))
    base, nan, inf = (np.asarray(run.matrix(sites, name).values, dtype=np.float64) for name in (quantity, "nan", "inf"))
    spoiled = (nan > 0) | (inf > 0)
    values = np.where(nan > 0, np.nan, np.where(inf > 0, np.inf, base))
    return Measured(values, spoiled | ~np.isnan(base))


def added(parts: Measured) -> Measured:
    """The sum over the columns; present where any is."""
    total = np.where(parts.present, parts.values, 0.0).sum(axis=1)
    return Measured(total, np.asarray(parts.present.any(axis=1), dtype=np.bool_))


def norm(parts: Measured) -> Measured:
    """The l2 norm over the columns, from the l2 norm of each; present where any is."""
    with np.errstate(over="ignore"):
        squares = added(Measured(parts.values**2, parts.present))
    return Measured(np.sqrt(squares.values), squares.present)
