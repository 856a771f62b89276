"""The numbers of a step that are no stats of a tensor, each a site of kind `scalar`; what there may be several of has a name for each."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .._core._site import Site
from ._clipping import Clip
from ._decay import decay_share
from ._numbered import Holder, Numbered
from ._parameters import Parameters
from ._table import SiteTable

Value = tuple[int, float]  # of a site


class Scalars:
    """`site` gives any of them its number; the others, which numbers there are and what they are."""

    def __init__(self, table: SiteTable) -> None:
        self.table = table
        self._numbered: dict[str, Numbered] = {}

    def site(self, name: str, of: Holder | None = None, part: int = 0) -> int:
        """The site of `name`: one for each holder there is, if it is `of` something."""
        if of is not None:
            name = self._numbered.setdefault(name, Numbered(name)).name(of, part)
        return self.table.add(Site(-1, name, "scalar"))

    def rates(self, optimizer: torch.optim.Optimizer) -> Iterator[Value]:
        """The learning rate of every group that has one; one that sits on another device than the CPU is not waited for."""
        for i, group in enumerate(optimizer.param_groups):
            rate = group.get("lr")
            if isinstance(rate, (int, float)) or (isinstance(rate, torch.Tensor) and rate.is_cpu):
                yield self.site("lr", optimizer, i), float(rate)

    def clip(self, optimizer: torch.optim.Optimizer, clip: Clip | None) -> Iterator[Value]:
        """What was done to the gradients that this optimizer gets; nothing where that is not known."""
        if clip is not None:
            yield self.site("clip", optimizer), clip.factor
            if clip.value is not None:
                yield self.site("clip_value", optimizer), clip.value

    def decay(self, optimizer: torch.optim.Optimizer, parameters: Parameters) -> Iterator[Value]:
        """Which share of the update is weight decay."""
        if (share := decay_share(optimizer, parameters)) is not None:
            yield self.site("decay_share", optimizer), share
