"""A file that is there whole or not at all, and bytes that are written all or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ._descriptor import open_apart


def replace_file(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Write a file so that a reader, at any moment and after any death of this process, sees the old content or the new.

    `durable` waits for the disk, so that even a power cut leaves one of the two.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(open_apart(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def append_whole(file: int, data: bytes, at: int) -> None:
    """Append to an open file that is `at` bytes long; on an error it is cut back to that length before the error is raised.

    A full disk takes the first part of a write and refuses the rest; without the cut, whatever is appended later would
    stand behind half a record and be lost to readers.
    """
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(file, rest) :]
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file, at)
        raise
