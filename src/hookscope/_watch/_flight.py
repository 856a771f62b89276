"""The flight recorder: the last frames in memory, at full rate, whatever of them goes to disk."""

from __future__ import annotations

from collections import deque

from .._core._frame import Frame
from .._record._columns import ROW_BYTES

MOST_BYTES = 64 << 20


class Flight:
    """Holds the `most` latest frames, fewer where they have more than 64 MiB."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._frames: deque[Frame] = deque()
        self._bytes = 0

    def keep(self, frame: Frame) -> None:
        """Take a frame in; rows that come late to a step stand as a frame of their own."""
        if not self._most:
            return
        self._frames.append(frame)
        self._bytes += ROW_BYTES * len(frame)
        while len(self._frames) > 1 and (len({f.step for f in self._frames}) > self._most or self._bytes > MOST_BYTES):
            self._bytes -= ROW_BYTES * len(self._frames.popleft())

    def frames(self, last: Frame | None = None) -> tuple[Frame, ...]:
        """Those held, and one that is still open."""
        return (*self._frames, last) if last is not None and self._most else tuple(self._frames)
