"""Tensors on disk by the hash of their content: each once, as `.npy`, so that one site at a time has to be in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ._prints import Print, fingerprint, plain

_RAW = {1: torch.uint8, 2: torch.int16}  # what NumPy has no name for: bfloat16 and the floats of eight bits


class Store:
    """Writes tensors into a folder as long as the budget (bytes) lasts, and reads them again. Nothing is pickled."""

    def __init__(self, folder: Path, *, budget: float = float("inf")) -> None:
        self.folder = folder
        self.left = budget
        self.dropped = 0
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, tensor: torch.Tensor, path: str = "", *, keep: bool = True) -> Print:
        """The fingerprint of a tensor, which is kept if it is asked to be and the budget allows."""
        value = plain(tensor)
        found = fingerprint(value, path)
        if keep and not self._file(found).exists():
            size = value.numel() * value.element_size()
            if size <= self.left:
                self.left -= size
                np.save(self._file(found), _as_numpy(value), allow_pickle=False)
            else:
                self.dropped += 1
        return found

    def get(self, found: Print) -> torch.Tensor | None:
        """The tensor of a fingerprint; None where it was not kept."""
        file = self._file(found)
        if not file.exists():
            return None
        value = torch.from_numpy(np.load(file, allow_pickle=False))
        dtype = getattr(torch, found.dtype)
        return (value if value.dtype == dtype else value.view(dtype)).reshape(found.shape)

    def _file(self, found: Print) -> Path:
        return self.folder / f"{found.digest}.npy"


def _as_numpy(value: torch.Tensor) -> NDArray[Any]:
    try:
        return np.asarray(value.numpy())
    except TypeError:
        return np.asarray(value.view(_RAW[value.element_size()]).numpy())
