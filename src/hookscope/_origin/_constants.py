"""The tensors of a forward that are no activations: buffers, and what is made of nothing or of these alone.

A factor that is far too large makes values leap without any operation whose result is large against both of what went in: the result has
to be held against what varies. Parameters vary, too: one that has leapt is a fault of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


class Constants:
    """By their memory, so that views are known; what is made of anything else there is none any more."""

    def __init__(self, buffers: Iterable[torch.Tensor] = ()) -> None:
        self._storages = {storage_of(tensor) for tensor in buffers if tensor.layout == torch.strided}

    def varying(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Those that are none; where there are no others, all."""
        return [tensor for tensor in inputs if storage_of(tensor) not in self._storages] or inputs

    def made(self, results: Iterable[torch.Tensor], inputs: Iterable[torch.Tensor]) -> None:
        """An operation has made these of those."""
        constant = all(storage_of(tensor) in self._storages for tensor in inputs)
        for tensor in results:
            (self._storages.add if constant else self._storages.discard)(storage_of(tensor))


def storage_of(tensor: torch.Tensor) -> int:
    """What tells the memory of a tensor with strides from all others while it lasts."""
    return int(tensor.untyped_storage()._cdata)
