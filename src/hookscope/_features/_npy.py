"""A .npy file that grows: its header has room for any shape, so it is a plain .npy at every commit."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

from .._core._errors import FeaturesError
from .._record._atomic import append_whole
from ._dtypes import Array, Dtype

HEADER = 256  # a multiple of 64, as numpy asks, so that a map of the values is aligned


def header(dtype: Dtype, shape: tuple[int, ...]) -> bytes:
    """The header of format version 1.0, always `HEADER` bytes.

    >>> len(header(np.dtype("<f4"), (10, 3)))
    256
    """
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    if len(text) >= HEADER - 10:
        raise FeaturesError(f"values of shape {shape} have too many dimensions for a .npy file that grows: pass pool='flatten'")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", HEADER - 10) + text.ljust(HEADER - 11) + b"\n"


class GrowingNpy:
    """Rows are appended at once; the header tells of them only when `settle` says so.

    An append that fails leaves the file as it was.
    """

    def __init__(self, path: Path, dtype: Dtype) -> None:
        self.path, self._dtype = path, dtype
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        self._size = max(os.fstat(self._file).st_size, HEADER)
        if self._size == HEADER:
            self.settle((0,))

    def append(self, values: Array) -> None:
        """Write the values behind what is there; they need not be contiguous."""
        if not values.size:
            return
        data: Any = np.ascontiguousarray(values, self._dtype).reshape(-1).view(np.uint8).data  # a view where they are contiguous
        os.lseek(self._file, self._size, os.SEEK_SET)
        append_whole(self._file, data, self._size)
        self._size += len(data)

    def holds(self, shape: tuple[int, ...]) -> bool:
        """Whether at least the values of that shape are there."""
        return self._size >= self._end(shape)

    def cut(self, shape: tuple[int, ...]) -> None:
        """Keep the values of that shape and forget what stands behind them."""
        self._size = self._end(shape)
        os.ftruncate(self._file, self._size)

    def settle(self, shape: tuple[int, ...]) -> None:
        """Let the header tell of the values of that shape."""
        os.lseek(self._file, 0, os.SEEK_SET)
        append_whole(self._file, header(self._dtype, shape), self._size)

    def close(self) -> None:
        """Let go of the file; what is in it stays."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _end(self, shape: tuple[int, ...]) -> int:
        return HEADER + self._dtype.itemsize * int(np.prod(shape, dtype=np.int64))
