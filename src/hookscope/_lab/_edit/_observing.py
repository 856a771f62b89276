"""Ops that change nothing and remember: what a sweep has to know before it begins."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import torch

from ..._core._site import Site
from ._op import Op
from ._place import Place


@dataclass(frozen=True, repr=False, eq=False)
class Counting(Op):
    """How many units each site has."""

    units: dict[str, int] = field(default_factory=dict)

    def edited(self, value: torch.Tensor, place: Place) -> torch.Tensor:
        self.units[_name(place.site)] = value.shape[place.unit_axis(value)] if value.dim() else 1
        return value


@dataclass(frozen=True, repr=False, eq=False)
class Keeping(Op):
    """What each site held, by call, and how many positions it had."""

    values: dict[str, dict[int, torch.Tensor]] = field(default_factory=lambda: defaultdict(dict))
    positions: dict[str, int] = field(default_factory=dict)

    @property
    def timed(self) -> bool:
        return True

    def by_call(self, name: str) -> list[torch.Tensor]:
        """A value for each call up to the last one that is meant; zero for those between that are not."""
        held = self.values[name]
        return [held.get(call, torch.zeros(())) for call in range(max(held) + 1)]

    def edited(self, value: torch.Tensor, place: Place) -> torch.Tensor:
        name = _name(place.site)
        self.values[name][place.call] = value.detach().clone()
        axis = place.layout.position_axis(value, place.unit_axis(value))
        self.positions[name] = 0 if axis is None else value.shape[axis]
        return value


def _name(site: Site) -> str:
    return f"{site.full_path}:{site.kind}"
