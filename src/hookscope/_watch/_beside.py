"""Numbers that come beside the attempts: what the user logs, what an evaluation has shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .._core._stats import Rows
from ._scalars import Scalars
from ._step import OpenStep, value_row

if TYPE_CHECKING:
    from ._steps import Steps


class Beside:
    """Adds rows to the open step, or to the one that is over."""

    def __init__(self, steps: Steps, scalars: Scalars) -> None:
        self.steps, self.scalars = steps, scalars

    def log(self, name: str, value: float) -> None:
        """A number belongs to the step under way; between two steps, to the one that is over."""
        self._add([self.scalars.site(name)], np.array([value_row(value)]), earlier=not self.steps.under_way)

    def add_evaluation(self) -> None:
        """What was evaluated since the last step speaks of the weights which that step left."""
        evaluation, steps = self.steps.activations.evaluation, self.steps
        if evaluation:
            sites, rows = evaluation.take()
            open_is_it = steps.clock.attempted or steps.clock.step == steps.first
            self._add(sites, steps.parameters.store.read(rows), earlier=not open_is_it)

    def _add(self, sites: Sequence[int], rows: Rows, *, earlier: bool) -> None:
        """Whether the step is recorded or not."""
        if self.steps.recorded and not earlier:
            self.steps.open.put(sites, rows)
        else:
            late = OpenStep()
            late.put(sites, rows)
            self.steps.reports.late(late.frame(self.steps.clock.step - earlier))
