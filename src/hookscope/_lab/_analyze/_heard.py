"""A module that is listened to, and what is known of the tensors that it returned before."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from ..._stats._units import Form
from ._meter import Meter
from ._trail import Place


@dataclass(frozen=True, slots=True)
class Known:
    """The last tensor of a place that was read: its form, and all that decided where it was added to.

    The next one like it is added without asking again, which costs more than the adding.
    """

    form: Form
    last: tuple[int, int]  # where the layer before had its units
    source: Place | None
    place: Place
    axis: int
    meter: Meter


@dataclass(slots=True)
class Heard:
    """A module, and what is asked of it: whether it is an activation, says itself where its units are, has parameters, keeps units.

    Then what is known: whose tensor this call took, and by call and leaf what was returned before.
    """

    path: str
    module: nn.Module
    acts: bool
    knows_axis: bool
    taken: Place | None = None
    known: dict[tuple[str, int], Known] = field(default_factory=dict)
    first: Known | None = None  # of these the one of the first call, where that returns one tensor
