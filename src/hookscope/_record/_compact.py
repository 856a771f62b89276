"""A finished segment of many small batches is rewritten as one of few large ones: what a slow training flushes step by step, read fast.

A batch costs a reader as much as some thousand rows do, however few its own. Readers that follow the run notice the new file and skip
the rows that they know: the order of rows stays.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow as pa

from ._atomic import replace_file
from ._buffer import FLUSH_ROWS
from ._segment import STREAM_OPTIONS, Segment
from ._tail import SegmentTail

SMALL_ROWS = 10_000


def compact(segment: Segment) -> None:
    """Rewrite a closed segment if its batches are small; on any trouble it stays as it is."""
    if segment.batches < 2 or segment.rows >= SMALL_ROWS * segment.batches:
        return
    with contextlib.suppress(OSError):  # a disk too full for a second copy
        table = pa.Table.from_batches(SegmentTail(segment.path).read()).combine_chunks()
        if table.num_rows == segment.rows:
            # Durable before it takes the place of a file that may have long been.
            replace_file(segment.path, _stream(table), durable=True)


def remove_leftovers(folder: Path) -> None:
    """Delete what a process killed in the middle of this left behind."""
    for path in folder.glob(".*.arrows.*.tmp"):
        path.unlink(missing_ok=True)


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=STREAM_OPTIONS) as stream:
        stream.write_table(table, max_chunksize=FLUSH_ROWS)
    data: bytes = sink.getvalue().to_pybytes()
    return data
