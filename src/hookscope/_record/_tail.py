"""A segment being read: whole batches only, remembered up to the last one."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from .._core._errors import RunUnreadableError
from ._columns import SCHEMA
from ._segment import END_OF_STREAM


class SegmentTail:
    """Reads what was appended since the last time.

    A process that dies within a write leaves a torn message at the end, and a live one may be caught in the act: neither is an error. The
    torn bytes are counted in `unread` and tried again once the file has grown. A file that was rewritten in larger batches is
    read anew, without the rows that were read before.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._size = 0
        self._schema: pa.Schema | None = None
        self._inode: int | None = None
        self._rows = 0
        self._known = 0  # leading rows of a rewritten file still to be skipped

    @property
    def unread(self) -> int:
        """Bytes at the end of the file that are no whole batch."""
        return self._size - self._offset

    def read(self) -> list[pa.RecordBatch]:
        """The batches that were completed since the last call."""
        data = self._appended()
        # Bytes read into memory, not a memory map: a map of a file that another process cuts short kills the reader with SIGBUS.
        source, start = pa.BufferReader(data), self._offset
        batches: list[pa.RecordBatch] = []
        try:
            while True:
                batches += self._decoded(pa.ipc.read_message(source))
                self._offset = start + source.tell()
        except RunUnreadableError:
            raise
        except (EOFError, OSError, pa.ArrowInvalid):
            if data[self._offset - start :] == END_OF_STREAM:
                self._offset = self._size
        return batches

    def _appended(self) -> bytes:
        with self._path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._inode:
                self._inode, self._known = found.st_ino, self._rows
                self._offset, self._size, self._schema = 0, 0, None
            if found.st_size == self._size:
                return b""
            file.seek(self._offset)
            data = file.read()
        self._size = self._offset + len(data)
        return data

    def _decoded(self, message: pa.ipc.Message) -> list[pa.RecordBatch]:
        if self._schema is not None:
            return self._news(pa.ipc.read_record_batch(message, self._schema))
        self._schema = pa.ipc.read_schema(message)
        missing = set(SCHEMA.names) - set(self._schema.names)
        if missing:
            raise RunUnreadableError(f"{self._path} is no segment of frames: it lacks the columns {', '.join(sorted(missing))}")
        return []

    def _news(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """What of the batch was not read before."""
        skipped = min(self._known, batch.num_rows)
        self._known -= skipped
        self._rows += batch.num_rows - skipped
        return [batch.slice(skipped)] if skipped < batch.num_rows else []
