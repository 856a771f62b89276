"""A store that keeps nothing and reads no values: for a run that is only to show order and shapes."""

from __future__ import annotations

from pathlib import Path

import torch

from ._prints import Print
from ._store import Store


class Shapes(Store):
    """Like a store, empty."""

    def __init__(self) -> None:
        self.folder, self.left, self.dropped = Path(), 0.0, 0

    def put(self, tensor: torch.Tensor, path: str = "", *, keep: bool = True) -> Print:  # noqa: ARG002  # the same call as a store's
        """Shape and dtype alone."""
        return Print(path, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), "", 0.0, 0.0, 0.0, 0, 0, ())

    def get(self, found: Print) -> torch.Tensor | None:  # noqa: ARG002  # the same call as a store's
        """Nothing."""
        return None
