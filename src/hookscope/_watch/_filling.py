"""An output into its slot: its stats are read, and its gradient will be."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from .._stats import reduce_into
from ._slot import Slot
from ._tap import Tap, held, tap_gradient

if TYPE_CHECKING:
    from ._activations import Activations


def fill(owner: Activations, tap: Tap, slot: Slot, tensor: torch.Tensor, given: tuple[Any, ...]) -> None:
    """`given` is what a forward hook is called with: the module, its arguments, keywords if any, and the output."""
    slot.forwards += 1
    if slot.followers:
        slot.followers.clear()
    source = _read(owner, slot, tensor)
    if source is slot:
        hooked = held(tap, tensor)
        if tap_gradient(slot, hooked):
            owner.tapped(tap, slot, hooked)
    if source.bad:
        owner.blame(tap, slot, given, tensor)


def _read(owner: Activations, slot: Slot, tensor: torch.Tensor) -> Slot:
    """Returns the slot that holds this tensor's stats: another one where a container returned its child's tensor."""
    slot.seq = owner.seq
    owner.seq += 1
    # Another thread may begin anew meanwhile: the slot is looked up before the tensor, and set before it.
    before, last, source, version = owner.last_slot, owner.last_tensor, slot, 0 if tensor.is_inference() else tensor._version
    same = before is not None and last is not None and last() is tensor and owner.last_version == version
    slot.follows = same and slot.can_follow(before)
    if slot.follows:
        source = before
        source.followers.append(slot)
    else:
        if slot.output_row is not None and not reduce_into(slot.output_row, tensor):
            return slot
        owner.last_slot, owner.last_version, owner.last_tensor = slot, version, weakref.ref(tensor)
    if slot.output_site >= 0 and source.output_row is not None:
        slot.source_row, slot.source_at = source.output_row, source.output_at
        owner.outputs.append(slot)
    return source
