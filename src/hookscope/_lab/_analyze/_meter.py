"""Everything that is added up at one place: units, second moment, saturation, massive activations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..._stats._units import Form, Units
from ._layer import Bounded, Massive
from ._moment import MomentSum

SATURATED = 0.95  # of the half range, from its middle: Glorot and Bengio's pictures, made a number
MASSIVE, TIMES_MEDIAN = 100.0, 1000.0  # Sun et al., 2024


@dataclass(frozen=True, slots=True)
class Reading:
    """What to read beyond the sums of the units."""

    bounds: tuple[float, float] | None = None
    spectrum: bool = True


class Meter:
    """Adds up one place."""

    def __init__(self, units: int, device: torch.device, reading: Reading) -> None:
        self.units = Units(units, device)
        self.reading = reading
        self.moment = MomentSum(units, self.units.device) if reading.spectrum and units > 1 else None
        self._reads_more = reading.bounds is not None or self.moment is not None
        self._beyond = self._zeros(2, units) if reading.bounds is not None else None
        self._massive: torch.Tensor | None = None  # few places ever have one
        self._top = self._ratio = 0.0

    def add(self, values: torch.Tensor, axis: int) -> None:
        """Add a tensor whose units are along `axis`."""
        self._look(values, axis, self.units.add(values, axis))

    def add_like(self, values: torch.Tensor, form: Form, axis: int) -> bool:
        """Add a tensor of a form that the units gave; whether it was one."""
        most = self.units.add_like(values, form)
        if most is None:
            return False
        if self._reads_more or most > MASSIVE:
            self._look(values, axis, most)
        return True

    def _look(self, values: torch.Tensor, axis: int, most: float) -> None:
        """What the sums of the units do not tell; `most` is the largest magnitude."""
        if not self._reads_more and most <= MASSIVE:
            return
        rows = values.movedim(axis, -1).reshape(-1, self.units.units).to(self.units.device)
        if self.reading.bounds is not None:
            self._add_saturation(rows)
        if most > MASSIVE:
            self._add_massive(rows)
        if self.moment is not None:
            self.moment.add(rows)

    @property
    def bounded(self) -> Bounded | None:
        """How near to its bounds the activation works."""
        if self.reading.bounds is None or self._beyond is None:
            return None
        beyond, reach = self._beyond.cpu().numpy()
        return Bounded(*self.reading.bounds, beyond.copy(), reach.copy())

    @property
    def massive(self) -> Massive:
        """The values that stand far above all others."""
        found = np.zeros(self.units.units) if self._massive is None else self._massive.cpu().numpy().copy()
        return Massive(found, self._top, self._ratio)

    def _zeros(self, *size: int) -> torch.Tensor:
        return torch.zeros(*size, dtype=torch.float64, device=self.units.device)

    def _add_saturation(self, rows: torch.Tensor) -> None:
        assert self._beyond is not None
        low, high = self.reading.bounds or (0.0, 0.0)
        finite = torch.where(rows.isfinite(), rows, (low + high) / 2)
        reach = ((finite - (low + high) / 2) / ((high - low) / 2)).abs_()
        self._beyond[0] += (reach > SATURATED).sum(0, dtype=torch.float64)
        self._beyond[1] += reach.sum(0, dtype=torch.float64)

    def _add_massive(self, rows: torch.Tensor) -> None:
        size = rows.abs().float()
        size = torch.where(size.isfinite(), size, 0.0)
        median = float(size.median())
        found = (size > MASSIVE) & (size > TIMES_MEDIAN * median)
        if bool(found.any()):
            self._massive = self._zeros(self.units.units) if self._massive is None else self._massive
            self._massive += found.sum(0, dtype=torch.float64)
            top = float(size.max())
            self._top, self._ratio = max(self._top, top), max(self._ratio, top / median if median else float("inf"))
