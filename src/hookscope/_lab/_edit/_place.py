"""What an op is told about the tensor it is given: the site, its axes, and which call it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..._core._errors import UsageError
from ..._core._site import Site
from ._layout import Layout


@dataclass(frozen=True, slots=True)
class Place:
    """`step` is the forward of the model, `call` the module's call within it, both from 0. `mask` is True where the op acts, or None.

    `step` and `call` are counted only for ops that need them: with `calls` or `steps`, or with `timed` set.
    """

    site: Site
    layout: Layout
    call: int = 0
    step: int = 0
    axis: int | None = None
    mask: torch.Tensor | None = None

    def unit_axis(self, value: torch.Tensor) -> int:
        """The axis that counts units: channels behind a convolution, the last one behind a linear layer, rows of a parameter."""
        if self.axis is None:
            return self.layout.unit_axis(value)
        if not -value.dim() <= self.axis < value.dim():
            raise UsageError(f"axis={self.axis} is none of the {value.dim()} axes of {self.site.name}, whose shape is {tuple(value.shape)}")
        return self.axis % value.dim()

    def position_axis(self, value: torch.Tensor) -> int:
        """The axis that counts the positions of a sequence."""
        axis = self.layout.position_axis(value, self.unit_axis(value))
        if axis is None or self.site.kind == "param_grad":
            raise UsageError(
                f"{self.site.name} of shape {tuple(value.shape)} has no positions: those are an axis of (batch, position, unit)"
            )
        return axis

    def head_size(self, units: int) -> int:
        """How many of the `units` belong to one head."""
        layout = self.layout
        if layout.head_size is not None and units % layout.head_size == 0:
            return layout.head_size
        if layout.head_size is None and layout.heads is not None and units % layout.heads == 0:
            return units // layout.heads
        raise UsageError(
            f"no module around {self.site.name} says how its {units} units divide into heads: name units instead, as in units=range(64)"
        )
