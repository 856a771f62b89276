"""Which module returned a tensor in this forward: so that the same one is read once, and what follows a layer is known."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch


class Place(NamedTuple):
    """A module's path, the way to a tensor in its output, the call."""

    path: str
    leaf: str = ""
    call: int = 0


class Step(NamedTuple):
    """A tensor that a place returned, with the version it had and the dimension of its units."""

    tensor: weakref.ref[torch.Tensor]
    version: int
    place: Place
    axis: int


class Trail:
    """The tensors of one forward; held weakly, so that none lives longer for it."""

    def __init__(self) -> None:
        self._steps: dict[int, Step] = {}

    def clear(self) -> None:
        """A new forward begins."""
        self._steps.clear()

    def find(self, tensor: torch.Tensor) -> Step | None:
        """Who returned this tensor, if nobody has written to it since."""
        step = self._steps.get(id(tensor))
        if step is None or tensor.is_inference():  # made inside the model: whether it was written to since cannot be told
            return None
        return step if step.tensor() is tensor and step.version == version(tensor) else None

    def note(self, tensor: torch.Tensor, place: Place, axis: int) -> None:
        """`place` returned it."""
        self._steps[id(tensor)] = Step(weakref.ref(tensor), version(tensor), place, axis)


def version(tensor: torch.Tensor) -> int:
    """How often it was written to; a tensor of inference mode does not say."""
    return 0 if tensor.is_inference() else tensor._version
