"""The journal of events: one JSON object a line, on disk the moment it happens."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ._atomic import append_whole
from ._descriptor import open_apart
from ._sink import Event


def encode_event(event: Event) -> bytes:
    """One line. NaN and Inf are written as Python's json writes them; numpy scalars as numbers, other strangers as their `str()`."""
    return (json.dumps(event, default=plain) + "\n").encode()


def plain(value: Any) -> Any:
    """What JSON does not know, in its own words."""
    return value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else str(value)


class Journal:
    """events.jsonl, open for appending."""

    def __init__(self, path: Path) -> None:
        self._file = open_apart(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            append_whole(self._file, b"\n", size)  # an earlier process died within a line: leave it broken, but alone

    def append(self, event: Event) -> None:
        """Add one event, or raise an OSError and add nothing."""
        append_whole(self._file, encode_event(event), os.fstat(self._file).st_size)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


class JournalTail:
    """events.jsonl as far as it has been read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Event]:
        """The events that were completed since the last call; a line still being written waits, a broken one is passed over."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [event for line in whole.splitlines() if (event := _decoded(line)) is not None]


def _decoded(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
