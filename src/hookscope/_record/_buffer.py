"""Frames gathered until they are worth a batch."""

from __future__ import annotations

import time
from collections.abc import Callable

from .._core._frame import Frame

FLUSH_SECONDS = 1.0
FLUSH_ROWS = 50_000


class FrameBuffer:
    """Holds copies of frames; `due` once they are a second old or many rows long."""

    def __init__(self, *, rows: int = FLUSH_ROWS, clock: Callable[[], float] = time.monotonic) -> None:
        self._frames: list[Frame] = []
        self._rows = 0
        self._limit = rows
        self._clock = clock
        self._flushed_at = clock()

    def add(self, frame: Frame) -> None:
        """Keep a copy: the watcher reuses its arrays."""
        arrays = (a.copy() for a in (frame.micro, frame.site, frame.call, frame.seq, frame.stats))
        self._frames.append(Frame(frame.step, *arrays))
        self._rows += len(frame)

    @property
    def due(self) -> bool:
        """Whether it is time to flush."""
        return self._rows >= self._limit or self._clock() - self._flushed_at >= FLUSH_SECONDS

    def take(self) -> tuple[Frame, ...]:
        """The frames held, which are somebody else's from now on; none if they have no row."""
        frames, rows = self._frames, self._rows
        self._frames, self._rows = [], 0
        self._flushed_at = self._clock()
        return tuple(frames) if rows else ()
