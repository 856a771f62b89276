"""A module that is listened to, and what is known of the tensors that it returned before."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from ..._stats._units import in_memory_order, sizes
from ._meter import Meter
from ._trail import Place


@dataclass(frozen=True, slots=True)
class Known:
    """The last tensor of a place that was read: its form, and all that decided where it was added to.

    The next one like it is added without asking again, which costs more than the adding.
    """

    shape: torch.Size
    stride: tuple[int, ...]
    last: tuple[int, int]  # where the layer before had its units
    source: Place | None
    place: Place
    axis: int
    sizes: tuple[int, int]
    meter: Meter


@dataclass(frozen=True, slots=True)
class Heard:
    """A module, and what is asked of it: whether it is an activation, whether it says itself where its units are, what is known by call."""

    path: str
    module: nn.Module
    acts: bool
    knows_axis: bool
    known: dict[tuple[str, int], Known] = field(default_factory=dict)


def is_bare(tensor: torch.Tensor) -> bool:
    """Whether its numbers are float32 and lie in the memory of this process, where its strides say."""
    if type(tensor) is not torch.Tensor or tensor.dtype is not torch.float32 or tensor.layout is not torch.strided:
        return False
    return tensor.is_cpu and not tensor.is_nested and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def sizes_in_memory(tensor: torch.Tensor, axis: int) -> tuple[int, int] | None:
    """How often all units come there, and how many numbers each has in a row; None for a tensor with gaps."""
    ordered, axis = in_memory_order(tensor, axis)
    return sizes(ordered, axis) if ordered.data_ptr() == tensor.data_ptr() else None
