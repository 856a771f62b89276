"""Whose forwards are meant: those that one thread runs while it has the turn, and no others of the same model."""

from __future__ import annotations

import threading
from types import TracebackType

import torch

_thread, _graph_task = threading.get_ident, torch._C._current_graph_task_id  # asked for by every hook


class Turn:
    """Entered around each forward that is meant; hooks ask `is_on`.

    Not meant are forwards of other threads, those that a loader or a metric runs between two batches, and what a checkpoint runs again in
    a backward.

    >>> turn = Turn()
    >>> with turn:
    ...     turn.is_on()
    True
    >>> turn.is_on()
    False
    """

    def __init__(self) -> None:
        self._thread: int | None = None

    def __enter__(self) -> None:
        self._thread = _thread()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._thread = None

    def is_on(self) -> bool:
        """Whether what runs now is meant."""
        return self._thread == _thread() and _graph_task() < 0
