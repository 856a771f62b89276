"""Which axis of a module's tensors counts units, which positions, and how wide a head is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

_SPATIAL = (
    nn.modules.conv._ConvNd,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
)
_CHANNELS_SECOND = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LocalResponseNorm)
_UNITS_LAST = (nn.Linear, nn.Bilinear, nn.LayerNorm, nn.RMSNorm, nn.Embedding, nn.EmbeddingBag, nn.RNNBase, nn.RNNCellBase)
_HEAD_SIZE = ("head_dim", "attention_head_size", "head_size")
_HEAD_COUNT = ("num_heads", "n_heads", "n_head", "num_attention_heads", "nhead")


@dataclass(frozen=True, slots=True)
class Layout:
    """`units` is `last`, `second`, `first`, or `unknown`: then the second of four or more axes, as of images, and else the last.

    `spatial` counts the axes behind the channels of a convolution, so that an image without a batch is known. `head_size` is in units,
    `heads` is how many there are; None where no module says it.
    """

    units: Literal["last", "second", "first", "unknown"] = "unknown"
    spatial: int | None = None
    sequence_first: bool = False
    head_size: int | None = None
    heads: int | None = None

    def unit_axis(self, value: torch.Tensor) -> int:
        """The axis of the units, counted from 0."""
        dims = value.dim()
        if self.units == "first" or dims < 2:
            return 0
        if self.spatial is not None:
            return max(0, dims - 1 - self.spatial)
        if self.units == "last" or (self.units == "unknown" and dims < 4):
            return dims - 1
        return 1

    def position_axis(self, value: torch.Tensor, unit_axis: int) -> int | None:
        """The axis of the positions of a sequence: of three axes, the one that is neither the units' nor the batch's."""
        if value.dim() != 3:
            return None
        if unit_axis != 2:
            return 2
        return 0 if self.sequence_first else 1


def layout_of(module: nn.Module, ancestors: Sequence[nn.Module] = ()) -> Layout:
    """The layout of what `module` takes and returns; `ancestors` are asked for heads, the nearest first."""
    family = [module, *ancestors]
    size, heads = _first(family, _HEAD_SIZE), _first(family, _HEAD_COUNT)
    sequence_first = getattr(module, "batch_first", True) is False
    if isinstance(module, _SPATIAL):
        names = (c.__name__ for c in type(module).__mro__ if c.__module__.startswith("torch.nn.modules."))
        spatial = next((int(name[-2]) for name in names if name[-2:] in ("1d", "2d", "3d")), None)
        return Layout("second", spatial, False, size, heads)
    units: Literal["last", "second", "unknown"] = "unknown"
    if isinstance(module, _CHANNELS_SECOND):
        units = "second"
    elif isinstance(module, _UNITS_LAST):
        units = "last"
    return Layout(units, None, sequence_first, size, heads)


def _first(family: Sequence[nn.Module], names: Sequence[str]) -> int | None:
    for module in family:
        for holder in (module.__dict__, getattr(module.__dict__.get("config"), "__dict__", {})):
            for name in names:
                if isinstance(found := holder.get(name), int) and found > 0:
                    return found
    return None
