"""Frames that had to go, since memory or the disk would not take them, and what the run says about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ._sink import Event


@dataclass(frozen=True, slots=True)
class Dropped:
    """How many frames, and the last step among them; `by` is what was too small or too slow."""

    by: Literal["memory", "disk"]
    frames: int = 0
    last: int = -1

    def and_also(self, frames: int, last: int) -> Dropped:
        """With some more."""
        return Dropped(self.by, self.frames + frames, max(self.last, last))

    def event(self) -> list[Event]:
        """The event, whose last one holds: nothing if nothing was dropped."""
        return [{"event": "frames_dropped", "by": self.by, "frames": self.frames, "last_step": self.last}] if self.frames else []
