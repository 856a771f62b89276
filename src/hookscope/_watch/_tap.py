"""One hooked module, and what its hook is placed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .._core._site import ROOT, Kind, Site
from .._core._stats import Rows
from .._taps._inventory import tensor_facts
from ._fields import Called
from ._slot import Slot

if TYPE_CHECKING:
    from ._activations import Activations

_LINEAR = f"{nn.Linear.__module__}.{nn.Linear.__qualname__}"


class Tap(Called):
    """One hooked module: its site (as kind "output"), and where it stands in the current micro-batch."""

    __slots__ = ("input_site", "site", "slots")

    def __init__(self, site: Site) -> None:
        self.site = site
        self.input_site = replace(site, kind="input")
        self.is_linear = site.bases[:1] == (_LINEAR,)
        self.slots: dict[tuple[str, int], Slot | None] = {}

    def add_slot(self, owner: Activations, path: str, call: int, tensor: torch.Tensor) -> None:
        """Make the slot for what a call returns at `path`, of which `tensor` is the first; it is None if nothing of it is wanted."""
        wanted: tuple[Kind, ...] = ("output", "output_grad") if tensor.is_floating_point() or tensor.is_complex() else ("output",)
        numbers = [owner.table.add(replace(self.site, kind=kind, output_path=path, **tensor_facts(tensor))) for kind in wanted]
        places = [(number, owner.store.row(tensor) if number >= 0 else None) for number in [*numbers, -1][:2]]
        self.slots[path, call] = slot = Slot(owner, call, *places) if max(numbers) >= 0 else None
        if not (path or call):
            self.first = slot

    def know_parts(self, output: tuple[Any, ...]) -> None:
        """The first call has returned this: where its tensors have slots, if it has nothing else in it."""
        plain = all(part is None or isinstance(part, torch.Tensor) for part in output)
        self.parts = tuple(self.slots.get((f"[{i}]", 0)) for i in range(len(output))) if plain else None


@dataclass(frozen=True, slots=True)
class MicroRows:
    """The folded rows of one micro-batch; not `full` where only the loss and what the model returned was read, and is as usual."""

    site: NDArray[np.int32]
    call: NDArray[np.int32]
    seq: NDArray[np.int32]
    stats: Rows
    full: bool = True


def held(tap: Tap, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor to hook."""
    return matrix_of(tensor) if tap.is_linear else tensor


def matrix_of(tensor: torch.Tensor) -> torch.Tensor:
    """With a bias, a Linear's output of three or more dimensions is a view of a matrix that nobody else uses; a hook on the view would be
    lost when that is written to, as an in-place activation does. The matrix has the same elements, and so its gradient.
    """
    base = tensor._base
    return tensor if base is None or base.grad_fn is None or base.numel() != tensor.numel() else base


def tap_gradient(slot: Slot, tensor: torch.Tensor) -> bool:
    """A leaf keeps its hooks for ever, so only what has a graph behind it is tapped."""
    if slot.grad_row is None or tensor.grad_fn is None:
        return False
    slot.tap(tensor)
    return True


def memory_of(tensor: torch.Tensor) -> int | None:
    return int(tensor.untyped_storage()._cdata) if tensor.layout == torch.strided else None


def recorded_output(micro: MicroRows, sites: Sequence[Site], path: str | None, call: int) -> list[tuple[float, ...]]:
    """What a call of the module at `path` has returned, a row for each tensor."""
    rows = [
        (sites[number].id, tuple(stats))
        for number, of_call, stats in zip(micro.site, micro.call, micro.stats.tolist(), strict=True)
        if of_call == call
        and sites[number].kind == "output"
        and not sites[number].label
        and path in (sites[number].full_path, sites[number].path or ROOT)
    ]
    return [stats for _, stats in sorted(rows)]
