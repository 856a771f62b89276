"""A shard that is being written: there whole under its name, or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .._record._atomic import append_whole
from ._batch import Ids, Piece
from ._dtypes import Array
from ._entry import Entry
from ._open_parquet import OpenParquet
from ._rows import Ended, Rows
from ._safetensors import safetensors_header, safetensors_room


class OpenShard(Protocol):
    """Takes the pieces of one site."""

    def append(self, piece: Piece, ids: Ids, /) -> None:
        """Take the samples of one batch."""

    def finish(self) -> Ended:
        """Put the file in its place."""

    def discard(self) -> None:
        """Leave nothing of it."""


class OpenSafetensors:
    """Values go to disk as they come, behind room for a header that tells of them at the end."""

    def __init__(self, path: Path, entry: Entry) -> None:
        self._path, self._entry, self._temporary = path, entry, path.with_name(f".{path.name}.tmp")
        path.parent.mkdir(exist_ok=True)
        self._size = self._room = safetensors_room(entry.dtype, entry.shape, entry.site.name)
        self._rows = Rows()
        self._file = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o666)

    def append(self, piece: Piece, _ids: Ids) -> None:
        """Write the samples of one batch; after a failure the shard can only be discarded."""
        self._write(piece.values)
        self._rows.add(piece)

    def finish(self) -> Ended:
        """Write offsets and header."""
        ended, offsets = self._rows.ended(), self._rows.offsets()
        tensors = {"values": ((ended.rows, *ended.shape), self._entry.dtype)}
        if offsets is not None:
            self._write(offsets)
            tensors["offsets"] = (offsets.shape, "int64")
        os.lseek(self._file, 0, os.SEEK_SET)
        append_whole(self._file, safetensors_header(tensors, self._entry.site.name, self._room), self._size)
        self._close()
        self._temporary.replace(self._path)
        return ended

    def discard(self) -> None:
        """Leave nothing of it."""
        self._close()
        self._temporary.unlink(missing_ok=True)

    def _write(self, values: Array) -> None:
        if values.size:
            data: Any = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
            os.lseek(self._file, self._size, os.SEEK_SET)
            append_whole(self._file, data, self._size)
            self._size += len(data)

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


OPENED: dict[str, type[OpenSafetensors | OpenParquet]] = {"safetensors": OpenSafetensors, "parquet": OpenParquet}
