"""Segments read by column, batch by batch, some ahead of the reader: what a run too large for memory is read by."""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from .._core._frame import STEP_LEVEL
from .._core._stats import COLUMNS, EMPTY
from ._columns import PLACES, SCHEMA, Column, column_of
from ._segment import END_OF_STREAM

Columns = dict[str, Column]
WAITING = 16  # batches of a segment that are decoded ahead: some 70 MB
READERS = min(4, os.cpu_count() or 1)
_FILL = {"step": 0.0, **dict.fromkeys(PLACES, STEP_LEVEL), **dict(zip(COLUMNS, EMPTY, strict=True))}


@dataclass(frozen=True, slots=True)
class Extent:
    """One file of frames as it stood at one moment: its rank, how many bytes of it count, and which of its batches, None for all."""

    rank: int
    path: Path
    bytes: int
    batches: tuple[int, ...] | None = None


def columns_of(extent: Extent, names: Sequence[str]) -> Iterator[Columns]:
    """These columns of each whole batch of one file; nothing else of it is unpacked, and of a finished file nothing else is read."""
    if extent.batches is not None:
        yield from _chosen(extent, names, frozenset(extent.batches))
        return
    fields = [SCHEMA.get_field_index(name) for name in names]
    try:
        stream = pa.ipc.open_stream(_bytes(extent), options=pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields))
        while True:
            batch = stream.read_next_batch()
            yield _columns(batch, names)
    except (StopIteration, EOFError, OSError, pa.ArrowInvalid):  # its end, or a message torn by a kill
        return


def _chosen(extent: Extent, names: Sequence[str], places: frozenset[int]) -> Iterator[Columns]:
    """Of some batches; the others are passed over."""
    source = _bytes(extent)
    with suppress(EOFError, OSError, pa.ArrowInvalid):
        schema = pa.ipc.read_schema(pa.ipc.read_message(source))
        for place in range(max(places, default=-1) + 1):
            message = pa.ipc.read_message(source)
            if place in places:
                yield _columns(pa.ipc.read_record_batch(message, schema), names)


def _columns(batch: pa.RecordBatch, names: Sequence[str]) -> Columns:
    return {name: column_of(batch.column(name), fill=_FILL[name]) for name in names}


def scan(extents: Sequence[Extent], names: Sequence[str]) -> Iterator[tuple[Extent, Columns]]:
    """The batches of all these files in order, each with its file."""
    from concurrent.futures import ThreadPoolExecutor  # here, because it would lengthen the opening of a run that needs none

    stop = threading.Event()
    with ThreadPoolExecutor(READERS, thread_name_prefix="hookscope-reader") as pool:
        under_way: deque[tuple[Extent, queue.Queue[Columns | Exception | None]]] = deque()
        try:
            for extent in extents:
                ahead: queue.Queue[Columns | Exception | None] = queue.Queue(WAITING)
                pool.submit(_read_ahead, extent, names, ahead, stop)
                under_way.append((extent, ahead))
                if len(under_way) > READERS:
                    yield from _taken(*under_way.popleft())
            while under_way:
                yield from _taken(*under_way.popleft())
        finally:
            stop.set()


def whole_bytes(extent: Extent) -> int:
    """How many of its bytes are whole messages."""
    source, whole = pa.BufferReader(_bytes(extent).read()), 0
    with suppress(EOFError, OSError, pa.ArrowInvalid):
        while pa.ipc.read_message(source) is not None:
            whole = source.tell()
    return extent.bytes if _is_finished(extent) else whole


def _taken(extent: Extent, ahead: queue.Queue[Columns | Exception | None]) -> Iterator[tuple[Extent, Columns]]:
    while (found := ahead.get()) is not None:
        if isinstance(found, Exception):
            raise found
        yield extent, found


def _read_ahead(extent: Extent, names: Sequence[str], ahead: queue.Queue[Columns | Exception | None], stop: threading.Event) -> None:
    def put(item: Columns | Exception | None) -> None:
        while not stop.is_set():
            with suppress(queue.Full):
                ahead.put(item, timeout=0.1)
                return

    try:
        for columns in columns_of(extent, names):
            if stop.is_set():
                return
            put(columns)
        put(None)
    except Exception as problem:  # noqa: BLE001  # told where the columns are waited for
        put(problem)


def _bytes(extent: Extent) -> pa.NativeFile:
    """A map of a finished file, which nobody cuts short any more; of one that is being written the bytes, since a map of a file that
    another process cuts short kills the reader.
    """
    if _is_finished(extent):
        return pa.memory_map(os.fspath(extent.path))
    with extent.path.open("rb") as file:
        return pa.BufferReader(file.read(extent.bytes))


def _is_finished(extent: Extent) -> bool:
    with extent.path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(END_OF_STREAM)))
        return file.read() == END_OF_STREAM
