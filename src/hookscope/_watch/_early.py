"""Gradients as they were when backward had ended, before the loop unscales and clips them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import nn

from .._core._stats import WIDTH, Rows
from .._stats import Marks, marks_of


@dataclass(frozen=True, slots=True)
class OfSome:
    """What is known of some parameters' gradients, in their order."""

    rows: Rows
    marks: Marks
    scales: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Early:
    """`place` of a parameter, by its id, in the arrays; `scales` are the factors in the gradients, None if all are 1."""

    place: dict[int, int] = field(default_factory=dict)
    rows: Rows = field(default_factory=lambda: np.empty((0, WIDTH)))
    marks: Marks = field(default_factory=lambda: np.empty((0, 4), np.int64))
    scales: NDArray[np.float64] | None = None
    bad: float = 0.0  # elements that are NaN or Inf
    squares: float = 0.0  # of all others

    def of(self, parameters: list[nn.Parameter]) -> OfSome | None:
        """Of these; None if one had no gradient to look at, or there is none of them."""
        places = [self.place.get(id(p), -1) for p in parameters]
        if not places or min(places) < 0:
            return None
        marks = self.marks[places]
        if not marks[:, 0].all():
            return None
        return OfSome(self.rows[places], marks, np.ones(len(places)) if self.scales is None else self.scales[places])

    def scale_of(self, parameter: nn.Parameter) -> float:
        """The factor that is still in the gradient: none where something has touched it since."""
        place = self.place.get(id(parameter))
        if place is None or self.scales is None or (self.marks[place, :2] != marks_of([parameter])[0, :2]).any():
            return 1.0
        return float(self.scales[place])


UNSEEN = Early()
