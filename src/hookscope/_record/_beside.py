"""Work done in order beside the training, by a thread that lives only while there is some; or at once, where that is asked for."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable

Work = Callable[[], None]
MOST_WAITING = 64 * 2**20  # bytes of frames that wait for the disk; then further ones are dropped


class Beside:
    """`hand` gives it work and never waits; what fails is raised by the next `hand` or `drain`, and tried again after that.

    There is no thread when the process forks, so that a child inherits neither one nor a lock; and none is needed when the interpreter
    shuts down, where threads cannot be started any more: then work is done at once.
    """

    def __init__(self, *, threaded: bool, most: int = MOST_WAITING) -> None:
        self._threaded = threaded
        self._most = most
        self._queue: deque[tuple[Work, int]] = deque()
        self._waiting = 0
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._lock = threading.Lock()  # around the few lines that decide whether the thread goes on; never held while working
        if threaded:
            _rest_before_forks()
            _all.add(self)

    def hand(self, work: Work, size: int = 0) -> bool:
        """Have `work` done, in its turn; False, and it is not, where more than `most` bytes wait already."""
        with self._lock:
            if size and self._waiting + size > self._most and self._queue:
                return False
            self._queue.append((work, size))
            self._waiting += size
        self._raise()
        self._go_on()
        return True

    def drain(self) -> None:
        """Wait until everything handed over is done."""
        self._raise()
        self._go_on()
        self.rest()
        self._raise()

    def rest(self) -> None:
        """Wait until no thread is at work; from within that thread, do nothing."""
        while (thread := self._thread) is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join()

    @property
    def here(self) -> bool:
        """Whether it is the working thread that asks, as when garbage that it stumbles upon closes what it works for."""
        return self._thread is threading.current_thread()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _go_on(self) -> None:
        with self._lock:
            if self._thread is not None or not self._queue:
                return
            # No daemon: the interpreter waits for it before it ends.
            beside = self._threaded and not sys.is_finalizing()
            thread = threading.Thread(target=self._work, name="hookscope-writer", daemon=False) if beside else None
            self._thread = thread or threading.current_thread()
        if thread is not None:
            try:
                thread.start()
            except RuntimeError:  # the interpreter shuts down, or the system has no thread to give
                self._thread = threading.current_thread()
                thread = None
        if thread is None:
            self._work()
            self._raise()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._thread = None
                    return
                work, size = self._queue[0]
            try:
                work()
            except BaseException as error:
                with self._lock:
                    self._thread = None
                if not isinstance(error, Exception):  # Ctrl-C, where this is the training's own thread
                    raise
                self._error = error
                return
            with self._lock:
                self._queue.popleft()
                self._waiting -= size


_all: weakref.WeakSet[Beside] = weakref.WeakSet()


def _rest_all() -> None:
    for beside in list(_all):
        beside.rest()


@functools.cache
def _rest_before_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_rest_all)
