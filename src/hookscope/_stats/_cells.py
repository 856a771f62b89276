"""The memory that stats are written into: rows of eight numbers on one device, which never move."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hookscope._core._stats import EMPTY, WIDTH, Rows

CHUNK = 256  # rows; 16 KiB, so that a small model costs little and a large one few copies


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A place for the stats of one tensor.

    `view` is its memory as a [1, 8] tensor with a version counter of its own, so that autograd and compiled graphs never take a write
    to one row for a write to its neighbours. `pointer` is its address where the native kernel can write there, else 0.
    """

    view: torch.Tensor
    pointer: int
    place: int  # among all rows of its cells
    host: NDArray[np.float64] | None  # the same memory, where the host can read it without waiting


def width_of(device: torch.device) -> torch.dtype:
    """The floating dtype that rows on this device have: float64, or float32 where the device cannot do better."""
    if device.type == "mps":
        return torch.float32
    if device.type == "xpu" and not getattr(torch.xpu.get_device_properties(device), "has_fp64", True):
        return torch.float32
    return torch.float64


class Cells:
    """Rows on one device, handed out one at a time and valid for as long as the object lives.

    A row is overwritten by each reduction into it, never added to: a forward that is run twice leaves the same numbers.
    A row never written reads as the stats of no elements. Chunks are allocated as needed and never reallocated, because views,
    compiled graphs and CUDA graphs hold on to their addresses.

    >>> cells = Cells("cpu")
    >>> first, second = cells.row(), cells.row()
    >>> first.view.fill_(7.0).shape
    torch.Size([1, 8])
    >>> cells.read([second, first])[:, 0].tolist()
    [0.0, 7.0]
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.dtype = width_of(self.device)
        self._chunks: list[torch.Tensor] = []
        self._next = CHUNK  # the index within the last chunk; there is none yet
        self._lock = threading.Lock()  # backward runs in a thread of its own for each GPU

    def row(self) -> Row:
        """The next unused row."""
        with self._lock:
            if self._next == CHUNK:
                self._grow()
            index, self._next = self._next, self._next + 1
            chunk = len(self._chunks) - 1
        with torch.inference_mode(mode=False):
            view = self._chunks[chunk][index : index + 1].data
        if self.device.type == "cpu":
            return Row(view, view.data_ptr(), chunk * CHUNK + index, view.numpy()[0])
        return Row(view, 0, chunk * CHUNK + index, None)

    def read(self, rows: Sequence[Row]) -> Rows:
        """The numbers in these rows, as a new [n, 8] float64 array on the host, in the given order.

        On a device other than the CPU this waits for the work queued there, and copies each chunk once.
        """
        places = np.array([row.place for row in rows], np.intp)
        read = np.empty((len(rows), WIDTH))
        if not rows:
            return read
        chunks = places // CHUNK
        for chunk in range(chunks.min(), chunks.max() + 1):
            here = chunks == chunk
            if here.any():
                read[here] = self._chunks[chunk].cpu().numpy()[places[here] - chunk * CHUNK]
        return read

    @property
    def capacity(self) -> int:
        """Rows there is memory for, handed out or not."""
        return len(self._chunks) * CHUNK

    def memory(self, rows: int) -> torch.Tensor:
        """[rows, 8] uninitialised, on this device and in its dtype."""
        with torch.inference_mode(mode=False):
            return torch.empty(rows, WIDTH, dtype=self.dtype, device=self.device)

    def gather(self, into: torch.Tensor) -> None:
        """Copy every row, chunk after chunk, into the first rows of `into`; nothing waits for the device."""
        if self._chunks:
            with torch.no_grad():
                torch.cat(self._chunks, out=into[: self.capacity])

    def _grow(self) -> None:
        # An inference tensor could not be written to outside inference mode, so a chunk must not become one.
        with torch.inference_mode(mode=False):
            host = torch.tensor([EMPTY], dtype=self.dtype, device="cpu").repeat(CHUNK, 1)
            self._chunks.append(host.to(self.device))
        self._next = 0
