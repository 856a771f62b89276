"""The run on disk, being written: what was flushed is readable, whatever happens to this process afterwards."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._core._errors import RunError
from .._core._frame import Frame
from .._core._site import Site
from ._atomic import replace_file
from ._beside import Beside
from ._buffer import FrameBuffer
from ._columns import ROW_BYTES, batch_of
from ._compact import compact, remove_leftovers
from ._dropped import Dropped
from ._journal import Journal
from ._layout import Layout, claim, unwritable
from ._meta import Meta, Status, meta_from_json, now
from ._mirror import refuse_url
from ._segment import Segment, segment_paths
from ._sink import checked_outcome
from ._sitetable import encode_sites, grown, read_sites
from ._tail import SegmentTail


class RunWriter:
    """Write a run into a directory, which is created.

    Frames are gathered and reach the disk, as one compressed batch, at the first of: one second since the last time (looked at in
    `frame`), 50,000 rows, `flush()`, `close()`. Sites and events are on disk when the call returns. Of several ranks each has its own
    writer on the same directory (`meta.rank`), with sites of its own; run.json is written by rank 0.

    `beside=True` leaves the work on frames and sites to a thread: `frame` and `sites` never wait for the disk, `flush` and `close` do. What
    fails there is raised by the next call. Where more than 64 MiB of frames wait, further ones are dropped, and the event `frames_dropped`
    counts them. Events are on disk when the call returns, either way. The files are the same.

    `overwrite=True` replaces an existing run and removes nothing but a run's own files. `resume=True` continues one: `next_step` is the
    step after the last one that any rank has recorded (0 in a new run) and `known_sites` the table so far, whose ids must be kept.

    Raises RunExistsError if there is a run and neither was asked for, RunError if the directory cannot be written. Later failures (a full
    disk) raise a plain OSError; rows not yet written are kept and tried again with the next flush.

    >>> import tempfile
    >>> writer = RunWriter(tempfile.mkdtemp(), Meta())
    >>> writer.sites([Site(0, "loss", "loss")])
    >>> writer.close("finished")
    """

    def __init__(
        self, to: str | os.PathLike[str], meta: Meta, *, overwrite: bool = False, resume: bool = False, beside: bool = False
    ) -> None:
        refuse_url(to)
        self.path = Path(to)
        self._layout = Layout(self.path)
        resumed = claim(self._layout, meta, overwrite=overwrite, resume=resume)
        self._known = read_sites(self._layout.sites_of(meta.rank)) if resumed else ()
        self._next_step = max((_last_step(self._layout.frames(r)) for r in self._layout.ranks()), default=-1) + 1 if resume else 0
        self._meta = replace(meta, created=self._created(meta)) if resumed else meta
        self._buffer = FrameBuffer()
        self._beside = Beside(threaded=beside)
        self._dropped = Dropped("disk")
        self._segment: Segment | None = None
        self._closed = False
        self._open()
        if resumed:
            self.event({"event": "resumed", "step": self._next_step})

    @property
    def meta(self) -> Meta:
        """What run.json says; of a resumed run, with the time at which it was first created."""
        return self._meta

    @property
    def next_step(self) -> int:
        """The step to go on with: one past the last recorded when the run was resumed, else 0."""
        return self._next_step

    @property
    def known_sites(self) -> tuple[Site, ...]:
        """The sites whose ids are taken: those of the resumed run and those given since."""
        return self._known

    def sites(self, table: Sequence[Site], /) -> None:
        """Replace the table of sites; a UsageError if an id changes its meaning."""
        merged = grown(self._known, table)
        if merged != self._known:
            self._beside.hand(lambda: replace_file(self._layout.sites_of(self._meta.rank), encode_sites(merged)))
        self._known = merged

    def frame(self, frame: Frame, /) -> None:
        """Take one step's stats; writes them only when a flush is due."""
        if self._closed:
            raise RunError(f"the run in {self.path} is closed: step {frame.step} came too late; open a new writer with resume=True")
        self._buffer.add(frame)
        if self._buffer.due:
            self._hand_over()

    def event(self, event: dict[str, Any], /) -> None:
        """Append to the journal at once."""
        if self._closed:
            raise RunError(f"the run in {self.path} is closed: the event {event.get('event')!r} came too late")
        self._journal.append(event)

    def flush(self) -> None:
        """Write what is held; afterwards a reader sees it."""
        self._hand_over(at_any_rate=True)
        self._beside.drain()

    def close(self, status: str, /) -> None:
        """Flush and write the end of the run; run.json is brought up to date even if the flush fails."""
        outcome = checked_outcome(status)
        if self._closed:
            return
        self._closed = True
        if self._beside.here:  # found as garbage by the thread that writes: it has to finish first
            self._hand_over(at_any_rate=True)
            self._beside.hand(lambda: self._end(outcome, lambda: None))
        else:
            self._end(outcome, self.flush)

    def _end(self, outcome: Status, flush: Callable[[], None]) -> None:
        with contextlib.ExitStack() as ending:
            ending.callback(self._write_meta, outcome, now())
            ending.callback(self._journal.close)
            ending.callback(self._close_segment)
            ending.callback(self._tell_dropped)
            flush()

    def _hand_over(self, *, at_any_rate: bool = False) -> None:
        frames = self._buffer.take()
        if not frames:
            return
        size = 0 if at_any_rate else ROW_BYTES * sum(map(len, frames))
        if self._beside.hand(lambda: self._append(frames), size):
            self._beside.hand(self._close_full_segment)
        else:
            if not self._dropped.frames:
                logging.getLogger("hookscope").warning(
                    "the disk of %s cannot keep up: frames are dropped from step %d on", self.path, frames[0].step
                )
            self._dropped = self._dropped.and_also(len(frames), frames[-1].step)

    def _append(self, frames: Sequence[Frame]) -> None:
        if self._segment is None:
            self._segment = Segment(self._layout.frames(self._meta.rank))
        self._segment.append(batch_of(frames))

    def _close_full_segment(self) -> None:
        if self._segment is not None and self._segment.full:
            self._close_segment()

    def _tell_dropped(self) -> None:
        for event in self._dropped.event():
            self._journal.append(event)

    def _open(self) -> None:
        try:
            self._write_meta("running", None)
            self._layout.frames(self._meta.rank).mkdir(parents=True, exist_ok=True)
            remove_leftovers(self._layout.frames(self._meta.rank))
            self._journal = Journal(self._layout.journal(self._meta.rank))
        except OSError as problem:
            raise unwritable(self.path, problem) from problem

    def _close_segment(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()
            compact(segment)

    def _write_meta(self, status: Status, closed: str | None) -> None:
        self._meta = replace(self._meta, status=status, closed=closed)
        if self._meta.rank == 0:
            replace_file(self._layout.meta, self._meta.to_json().encode())

    def _created(self, meta: Meta) -> str:
        if meta.rank:
            return meta.created
        return meta_from_json(self._layout.meta.read_text(), str(self.path)).created


def _last_step(folder: Path) -> int:
    """The last step recorded by a rank, -1 if none; only the newest segments that hold a row are read."""
    for path in reversed(segment_paths(folder)):
        steps = [batch.column("step")[-1].as_py() for batch in SegmentTail(path).read() if batch.num_rows]
        if steps:
            return int(max(steps))
    return -1
