"""What is read of a micro-batch in a step that is left out, its loss and what the model returned: rows only if they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .._core._stats import WIDTH
from ._tap import MicroRows


@dataclass(frozen=True, slots=True)
class Glimpse:
    """`places` are site, call and seq of each of the `stats`."""

    places: Sequence[tuple[int, int, int]]
    stats: Sequence[Sequence[float]]

    def rows(self) -> MicroRows:
        """The same as arrays."""
        site, call, seq = np.array(self.places, np.int32).reshape(-1, 3).T
        return MicroRows(site, call, seq, np.array(self.stats, np.float64).reshape(-1, WIDTH), False)
