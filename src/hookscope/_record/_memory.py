"""A run in memory: the same as on disk, within a number of bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from .._core._errors import RunError
from .._core._frame import Frame
from .._core._site import Site
from ._buffer import FLUSH_ROWS, FrameBuffer
from ._columns import ROW_BYTES, batch_of, distinct_steps, rows_of
from ._dropped import Dropped
from ._meta import Meta, now
from ._run import Run
from ._sink import Event, checked_outcome
from ._sitetable import grown
from ._source import Snapshot

DEFAULT_CAP = 256 * 2**20


class MemoryWriter:
    """Record into memory; `run` reads it at any time.

    Holds at most `cap` bytes of rows (256 MiB by default, some 3 million rows): beyond it the oldest frames are dropped, and the event
    `frames_dropped` says how many.

    >>> sink = MemoryWriter(Meta())
    >>> sink.sites([Site(0, "loss", "loss")])
    >>> sink.run.sites[0].name
    'loss'
    """

    path: Path | None = None

    def __init__(self, meta: Meta | None = None, *, cap: int = DEFAULT_CAP) -> None:
        self._meta = meta or Meta()
        self._cap = cap
        self._sites: tuple[Site, ...] = ()
        self._events: list[Event] = []
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._dropped = Dropped("memory")
        self._lock = threading.RLock()  # a live page reads from another thread
        # An eighth of the cap a batch: dropping the oldest batch never drops much of what could stay.
        self._buffer = FrameBuffer(rows=max(1, min(FLUSH_ROWS, cap // ROW_BYTES // 8)))

    @property
    def meta(self) -> Meta:
        """What run.json would say."""
        return self._meta

    @property
    def run(self) -> Run:
        """Everything recorded so far, as a Run; its `refresh()` sees what comes later."""
        return Run.from_source(self)

    def sites(self, table: Sequence[Site], /) -> None:
        """Replace the table of sites; a UsageError if an id changes its meaning."""
        self._sites = grown(self._sites, table)

    def frame(self, frame: Frame, /) -> None:
        """Take one step's stats."""
        if self._meta.status != "running":
            raise RunError(f"the run in memory is closed: step {frame.step} came too late")
        with self._lock:
            self._buffer.add(frame)
            if self._buffer.due:
                self.flush()

    def event(self, event: dict[str, Any], /) -> None:
        """Note something that happened."""
        self._events.append(dict(event))

    def flush(self) -> None:
        """Turn what is held into a batch, and drop the oldest ones if there are too many bytes."""
        with self._lock:
            if frames := self._buffer.take():
                batch = batch_of(frames)
                self._batches.append(batch)
                self._bytes += batch.nbytes
            while self._bytes > self._cap and len(self._batches) > 1:
                self._drop(self._batches.popleft())

    def close(self, status: str, /) -> None:
        """Flush and note how the run ended."""
        outcome = checked_outcome(status)
        if self._meta.status == "running":
            self.flush()
            self._meta = replace(self._meta, status=outcome, closed=now())

    def poll(self) -> Snapshot:
        """The run as it stands now."""
        with self._lock:
            self.flush()
            batches, events = tuple(self._batches), (*self._events, *self._dropped.event())
        return Snapshot(self._meta, self._sites, events, (rows_of(batches, self._meta.rank),))

    def size(self) -> int:
        """Bytes of the rows that are held."""
        return self._bytes

    def _drop(self, batch: pa.RecordBatch) -> None:
        self._bytes -= batch.nbytes
        steps = distinct_steps(batch.column("step").to_numpy())
        self._dropped = self._dropped.and_also(len(steps), int(steps[-1]))
