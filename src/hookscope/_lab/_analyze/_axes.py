"""The dimension of the units of each output: stated, or known of the layer, or that of the layer before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..._core._errors import UsageError
from ..._core._select import select, select_sites
from ..._core._site import Site
from .._unit_axis import axis_of

Stated = Callable[[Site], int | None]


class Axes:
    """Follows a forward."""

    def __init__(self, stated: Stated) -> None:
        self._stated = stated
        self.last = -1, 0  # the dimension of the units, and how many dimensions there were

    def clear(self) -> None:
        """A new forward begins."""
        self.last = -1, 0  # the dimension of the units, and how many dimensions there were

    def passed(self, module: nn.Module, found: list[tuple[str, torch.Tensor]]) -> None:
        """A layer that knows where its units are has returned these tensors: those after it go by that."""
        axis = axis_of(module, found[0][1]) if found else None
        if axis is not None:
            self.last = axis, found[0][1].dim()

    def of(self, site: Site, module: nn.Module, values: torch.Tensor) -> int:
        """The dimension, counted from the front."""
        if not values.dim():
            return 0
        axis = self._stated(site)
        if axis is not None and not -values.dim() <= axis < values.dim():
            raise UsageError(f"dim={axis} is no dimension of {site.name}, which has the shape {tuple(values.shape)}")
        if axis is None:
            axis = axis_of(module, values)
        if axis is None:
            axis = self.last[0] if values.dim() == self.last[1] else -1
        return axis % values.dim()


def stated(dim: int | Mapping[Any, int] | None, sites: list[Site]) -> Stated:
    """What `dim=` says of a site: one number for all, or a number for each selection."""
    if not isinstance(dim, Mapping):
        return lambda _site: dim
    for selection in dim:
        select_sites(sites, selection, leaves=False)
    rules = [(select(selection).among(sites), axis) for selection, axis in dim.items()]
    return lambda site: next((axis for matcher, axis in rules if matcher.matches(site)), None)
