"""Outputs that are views: once such a tensor is written to in place, torch drops the hook on its gradient without a word."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from ._slot import Slot

if TYPE_CHECKING:
    from ._activations import Tap


class Views:
    """`lost` are the taps that missed a gradient by it."""

    def __init__(self) -> None:
        self.lost: set[Tap] = set()
        self._seen: list[tuple[Tap, Slot, weakref.ref[torch.Tensor], int]] = []
        self._written: list[tuple[Tap, Slot]] = []

    def tapped(self, tap: Tap, slot: Slot, tensor: torch.Tensor) -> None:
        """A hook has been put on `tensor`."""
        if tensor._is_view():
            self._seen.append((tap, slot, weakref.ref(tensor), tensor._version))

    def begin_backward(self) -> None:
        """Which of them are no longer what they were?"""
        alive = ((tap, slot, tensor, version) for tap, slot, ref, version in self._seen if (tensor := ref()) is not None)
        self._written = [(tap, slot) for tap, slot, tensor, version in alive if tensor._version != version]

    def end_backward(self) -> None:
        """A write that autograd does not know of, through `detach()`, drops no hook: the gradient has come."""
        self.lost.update(tap for tap, slot in self._written if not slot.grad_written)
        self._written = []

    def forget(self) -> None:
        """The micro-batch is over."""
        self._seen = []
