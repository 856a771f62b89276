"""The memory of slots in compiled graphs: one block for all of them, each with a storage of its own.

Slots that shared a storage would be taken for views of one another, and written one after the other.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .._core._stats import EMPTY, WIDTH, Rows
from .._stats import Row, reduce_into
from .._taps._inventory import tensor_facts

ROWS = 3  # merged stats; room for those of one tensor; marks
_EMPTY = np.array(EMPTY)
_numbers = itertools.count(1)


class Slot:
    """A [3, 8] `tensor`, known by its address and, in a copy that a compiler makes, by the number in its marks.

    Marks are: whether it was written to outside of a backward since it was emptied, and that number. `facts` say what a site does of its
    tensor; they are those of the first one.
    """

    __slots__ = ("__weakref__", "facts", "host", "merged", "new", "number", "tensor")

    def __init__(self, tensor: torch.Tensor, number: int) -> None:
        self.tensor = tensor
        self.number = number
        self.facts: dict[str, Any] | None = None
        pointer = tensor.data_ptr() if tensor.is_cpu else 0
        step = tensor.stride(0) * tensor.element_size()
        self.merged, self.new = (Row(tensor[i : i + 1], pointer and pointer + i * step, 0, None) for i in range(2))
        self.host: NDArray[np.float64] | None = tensor.numpy() if tensor.is_cpu else None


_by_address: weakref.WeakValueDictionary[int, Slot] = weakref.WeakValueDictionary()
_by_number: weakref.WeakValueDictionary[int, Slot] = weakref.WeakValueDictionary()


class Block:
    """`slots` never move: compiled graphs hold on to them."""

    def __init__(self, count: int, device: torch.device, dtype: torch.dtype) -> None:
        first = np.zeros((count, ROWS, WIDTH), np.float64 if dtype == torch.float64 else np.float32)
        numbers = list(itertools.islice(_numbers, count))
        first[:, :2], first[:, 2, 1] = _EMPTY, numbers
        with torch.inference_mode(mode=False), torch.no_grad():
            self._all = torch.from_numpy(first)
            if device.type == "cpu":
                tensors = [torch.from_numpy(each) for each in first]
            else:
                self._all = self._all.to(device)
                tensors = [self._all[i].data for i in range(count)]
            self._empty = torch.tensor(EMPTY, dtype=dtype, device=device)
        self.slots = [Slot(tensor, number) for tensor, number in zip(tensors, numbers, strict=True)]
        for slot in self.slots:
            _by_address[slot.tensor.data_ptr()] = _by_number[slot.number] = slot

    def take(self) -> tuple[NDArray[np.intp], Rows]:
        """Which slots were written, and their rows; all are empty again."""
        merged = self._all[:, 0].cpu().numpy()
        written = np.flatnonzero(merged[:, 0])
        rows = merged[written].astype(np.float64)
        if len(written):
            self.empty(slice(None))
        return written, rows

    def empty(self, which: slice) -> None:
        """Forget what these slots hold."""
        with torch.no_grad():
            self._all[which, 0] = self._empty
            self._all[which, 2, 0] = 0.0


def merge_into(tensor: torch.Tensor, x: torch.Tensor, *, again: bool | None) -> None:
    """Add the stats of `x` to the slot whose tensor this is, or a copy. `again`: `x` is made in a backward; None for a gradient.

    A module that is called several times leaves the stats of all its calls together, never those of the last one. What a checkpoint runs
    again in the backward is left out, but where it has not shown in the forward.
    """
    known = _by_address.get(tensor.data_ptr())
    slot = Slot(tensor, 0) if known is None else known
    if slot.host is None:
        _merge_there(slot, x, again)
        return
    if known is None:
        known = _by_number.get(int(slot.host[2, 1]))
    if known is not None and known.facts is None:
        known.facts = tensor_facts(x)
    _merge_here(slot, slot.host, x, again)


def _merge_here(slot: Slot, host: NDArray[np.float64], x: torch.Tensor, again: bool | None) -> None:
    if again is not None:
        if again and host[2, 0]:
            return
        host[2, 0] = not again
    if not host[0, 0]:
        reduce_into(slot.merged, x)
    elif reduce_into(slot.new, x):
        merged, new = host[0], host[1]
        merged[:6] += new[:6]
        merged[6], merged[7] = min(merged[6], new[6]), max(merged[7], new[7])


def _merge_there(slot: Slot, x: torch.Tensor, again: bool | None) -> None:
    """The same on another device than the CPU: tensor operations there, as a CUDA graph needs it, none of which waits."""
    with torch.no_grad():
        memory = slot.tensor.data  # with a version of its own: the slot of a gradient is saved for the backward
        if not reduce_into(slot.new, x):
            return
        old, new, marks = memory
        both = torch.cat([old[:6] + new[:6], torch.minimum(old[6:7], new[6:7]), torch.maximum(old[7:], new[7:])])
        old.copy_(torch.where(marks[0] > 0, old, both) if again else both)
        if again is False:
            marks[0] = 1.0
