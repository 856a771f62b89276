"""Parameters, read into the step that is open."""

from __future__ import annotations

from torch import nn

from ._clipping import Clip
from ._parameters import Parameters
from ._step import OpenStep


class Reading:
    """Knows which parameters some optimizer has come by with."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self._claimed: set[int] = set()

    def before(self, step: OpenStep, wanted: list[nn.Parameter], *, gradients: bool, scale: float = 1.0) -> Clip | None:
        """As an optimizer finds them, their gradients too if those are there; what the loop has done to these."""
        self.parameters.read_values(wanted)
        clip = self.parameters.read_gradients(wanted, scale) if gradients else None
        self.keep(step)
        return clip

    def after(self, step: OpenStep, wanted: list[nn.Parameter]) -> None:
        """What has changed in them since."""
        self.parameters.read_updates(wanted)
        self.keep(step)

    def unclaimed(self, step: OpenStep, mine: list[nn.Parameter], *, first: bool) -> None:
        """With the first optimizer of a round, which has come with `mine`, go those that none has claimed: frozen ones, forgotten ones."""
        self._claimed |= {id(p) for p in mine}
        if first:
            self.as_given(step, [p for p in self.parameters.alive() if id(p) not in self._claimed])

    def as_given(self, step: OpenStep, wanted: list[nn.Parameter]) -> None:
        """With the gradients that the last backward gave."""
        self.parameters.read_given(wanted)
        self.before(step, wanted, gradients=False)

    def keep(self, step: OpenStep) -> None:
        """Put what has been read so far into the step."""
        for sites, rows in self.parameters.fold():
            step.put(sites, rows)
