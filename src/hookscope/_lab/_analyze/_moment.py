"""The second moment of a layer, added up row by row, and how it merges.

Exact up to `EXACT` units. Beyond that, rows are first multiplied by one fixed random matrix with `SKETCH` columns (Johnson and
Lindenstrauss): memory stays at `SKETCH` squared numbers a layer, and what is read from the spectrum becomes an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]
EXACT, SKETCH = 2048, 512
CHUNK = 1 << 22  # elements in float64 at a time


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """`n` rows with their `mean` [d] and `scatter` [d, d], the sum of outer products of differences from it.

    `units` is the width of the layer; where it is more than d, rows were projected.
    """

    n: float
    mean: Floats
    scatter: Floats
    units: int

    @property
    def sketched(self) -> bool:
        """Whether the spectrum is an estimate."""
        return self.units > len(self.mean)

    def merge(self, other: Moment) -> Moment:
        """Both together (Chan et al., 1979)."""
        n = self.n + other.n
        if not self.n or not other.n:
            return self if self.n else other
        delta = other.mean - self.mean
        scatter = self.scatter + other.scatter + np.outer(delta, delta) * (self.n * other.n / n)
        return Moment(n, self.mean + delta * (other.n / n), scatter, self.units)


class MomentSum:
    """Adds rows up; one float64 matrix, whatever the number of rows."""

    def __init__(self, units: int, device: torch.device) -> None:
        self.units = units
        self._project = projection(units).to(device) if units > EXACT else None
        d = SKETCH if self._project is not None else units
        self._n = 0.0
        self._sum, self._gram = (torch.zeros(*size, dtype=torch.float64, device=device) for size in ((d,), (d, d)))
        self._shift: torch.Tensor | None = None

    def add(self, rows: torch.Tensor) -> None:
        """Add rows [n, units]; a row with a NaN or Inf in it is left out."""
        rows, at_once = rows.detach().to(self._gram.device), max(1, CHUNK // self.units)
        for start in range(0, len(rows), at_once):
            x = rows[start : start + at_once].double()
            if not bool(torch.isfinite(x.sum())):
                x = x[x.isfinite().all(1)]
            if self._project is not None:
                x = x @ self._project
            if not len(x):
                continue
            self._shift = x.mean(0) if self._shift is None else self._shift
            x = x - self._shift
            self._n += len(x)
            self._sum += x.sum(0)
            self._gram.addmm_(x.T, x)

    def moment(self) -> Moment:
        """What has been added, on the host."""
        total, gram = self._sum.cpu().numpy(), self._gram.cpu().numpy()
        n = max(self._n, 1.0)
        shift = np.zeros_like(total) if self._shift is None else self._shift.cpu().numpy()
        return Moment(self._n, shift + total / n, gram - np.outer(total, total) / n, self.units)


@lru_cache(maxsize=4)
def projection(units: int) -> torch.Tensor:
    """The random matrix of a width, the same in every process; distances keep their size on average."""
    generator = torch.Generator().manual_seed(units)
    return torch.randn(units, SKETCH, generator=generator, dtype=torch.float64).div(SKETCH**0.5)
