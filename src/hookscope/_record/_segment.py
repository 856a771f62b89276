"""One file of frames being written: an Arrow stream, appended to by whole batches only."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from ._atomic import append_whole
from ._columns import SCHEMA
from ._descriptor import open_apart

SEGMENT_BYTES = 64 * 2**20
SEGMENT_BATCHES = 128
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
STREAM_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


def segment_paths(folder: Path) -> list[Path]:
    """The segments of one rank, oldest first."""
    return sorted(folder.glob("[0-9]*.arrows"), key=lambda p: (len(p.name), p.name))


class Segment:
    """A new, numbered stream in a rank's folder, `size` bytes long."""

    def __init__(self, folder: Path) -> None:
        older = segment_paths(folder)
        number = int(older[-1].stem) + 1 if older else 1
        self.path = folder / f"{number:06d}.arrows"
        self._file = open_apart(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        self.size = self.batches = self.rows = 0

    @property
    def full(self) -> bool:
        """Whether the next batch belongs into a new segment."""
        return self.size >= SEGMENT_BYTES or self.batches >= SEGMENT_BATCHES

    def append(self, batch: pa.RecordBatch) -> None:
        """Add a batch, in front of the first one the schema; either all of it or, with an OSError, nothing of it."""
        data = _message(batch) if self.size else SCHEMA.serialize().to_pybytes() + _message(batch)
        self._append(data)
        self.batches += 1
        self.rows += batch.num_rows

    def close(self) -> None:
        """Mark the end of the stream and let go of the file, even if there is no room for the mark."""
        try:
            if self.size:
                self._append(END_OF_STREAM)
        finally:
            os.close(self._file)

    def _append(self, data: bytes) -> None:
        append_whole(self._file, data, self.size)
        self.size += len(data)


def _message(batch: pa.RecordBatch) -> bytes:
    """The batch as the one message it is within a stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=STREAM_OPTIONS) as stream:
        stream.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()  # the schema
    data: bytes = messages.read_next_message().serialize().to_pybytes()
    return data
