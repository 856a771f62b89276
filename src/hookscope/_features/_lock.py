"""One writer a directory: a second process is told, and a killed one holds nothing back."""

from __future__ import annotations

import os
from pathlib import Path

from .._core._errors import FeaturesError

NAME = ".writing"


class Lock:
    """Taken when made, given back by `release` or by the end of the process.

    A lock of the record kind, because a child that a loader forked does not inherit it: after a kill the workers live on for seconds.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _take(self._file, folder)
        except BaseException:
            os.close(self._file)
            raise

    def release(self) -> None:
        """Let others write."""
        if self._file >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1


def _take(file: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows: two writers on one directory are not noticed there
        return
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise FeaturesError(f"another process is writing features to {folder}: wait for it, or choose another directory") from None
    except OSError:  # a file system without locks
        return
