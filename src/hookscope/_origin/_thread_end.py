"""Takes a mode out of its thread's stack when that thread ends: torch frees the stack so late that Python may be gone, and aborts then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress


class AtThreadEnd:
    """`then` is called once for each thread that calls `here`, in that thread, as the last thing it does."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._then = then
        self._local = threading.local()

    def here(self) -> None:
        """Have `then` called when the calling thread ends."""
        if not hasattr(self._local, "last"):
            self._local.last = Last(self._then)


class Last:
    """Calls `then` when it is deleted: with what is local to its thread, or with the frame that holds it."""

    __slots__ = ("_then", "_thread")

    def __init__(self, then: Callable[[], object]) -> None:
        self._then = then
        self._thread = threading.get_ident()

    def __del__(self) -> None:
        if threading.get_ident() == self._thread:  # else it is the whole that goes, and no thread of its own ends
            with suppress(Exception):  # nobody could catch it
                self._then()
