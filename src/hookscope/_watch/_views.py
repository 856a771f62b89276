"""Outputs that are views: once such a tensor is written to in place, torch drops the hook on its gradient without a word."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from ._slot import Slot

if TYPE_CHECKING:
    from ._tap import Tap


class Views:
    """`lost` are the taps that missed a gradient by it."""

    def __init__(self) -> None:
        self.lost: set[Tap] = set()
        self._seen: list[tuple[Tap, Slot, weakref.ref[torch.Tensor], int]] = []
        self._written: list[tuple[Tap, Slot]] = []
        self._latest: tuple[Tap, Slot, weakref.ref[torch.Tensor], int] | None = None
        # The latest of each module may die before the backward, written to by the program itself; this has its memory and its version.
        self._memory: dict[Tap, tuple[Slot, torch.Tensor, int]] = {}

    def tapped(self, tap: Tap, slot: Slot, tensor: torch.Tensor) -> None:
        """A hook has been put on `tensor`, a view."""
        self._latest = (tap, slot, weakref.ref(tensor), tensor._version)
        self._seen.append(self._latest)
        self._memory[tap] = slot, tensor.detach(), tensor._version

    def called(self) -> None:
        """The next module has been called: most often with the latest of them, which may be gone before the backward."""
        if self._latest is not None:
            with torch._C.DisableTorchFunctionSubclass():  # it may be of a subclass of the user's, which is not to notice
                self._written += _written([self._latest])

    def begin_backward(self) -> None:
        """Which of them are no longer what they were?"""
        self._written += _written(self._seen)
        self._written += [(tap, slot) for tap, (slot, memory, version) in self._memory.items() if memory._version != version]

    def end_backward(self) -> None:
        """What was used before the write has its gradient all the same."""
        self.lost.update(tap for tap, slot in self._written if not slot.grad_written)
        self._written = []

    def forget(self) -> None:
        """The micro-batch is over."""
        self._seen, self._written, self._latest = [], [], None
        self._memory.clear()


def _written(seen: list[tuple[Tap, Slot, weakref.ref[torch.Tensor], int]]) -> list[tuple[Tap, Slot]]:
    alive = ((tap, slot, tensor, version) for tap, slot, ref, version in seen if (tensor := ref()) is not None)
    return [(tap, slot) for tap, slot, tensor, version in alive if tensor._version != version]
