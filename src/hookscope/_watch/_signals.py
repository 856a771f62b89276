"""SIGTERM, by which a scheduler ends a training: whoever asked is told first, and then happens what would have happened without.

The handler is put in place by the first who asks, in the main thread alone, and the one before it put back by the last. A crash in C
(SIGSEGV) runs no Python, so that nobody can be told of it.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from ._safety import Safety

Before = Callable[[int, FrameType | None], Any] | int | signal.Handlers


class Told(Protocol):
    """Who may be told."""

    safety: Safety

    def told_to_end(self, name: str, *, certainly: bool) -> None:
        """A signal has come; if `certainly`, the process ends by it."""


class Handler:
    """Ours, and the one `before` it. It stays callable when it is out of place: another one may have been put around it."""

    def __init__(self, before: Before) -> None:
        self.before = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Tell the listeners, each where none of its parts is at work, and go on to what was there before."""
        in_place: Any = signal.getsignal(signal.SIGTERM)
        certainly = self.before == signal.SIG_DFL and in_place is self
        told = _signals.to_be_told()

        def tell_next() -> None:
            if not told:
                self._pass_on(number, frame, certainly=certainly)
                return
            listener = told.pop()

            def tell() -> None:
                listener.told_to_end(signal.Signals(number).name, certainly=certainly)
                tell_next()

            listener.safety.afterwards(tell)

        tell_next()

    def _pass_on(self, number: int, frame: FrameType | None, *, certainly: bool) -> None:
        """What would have happened without us."""
        if callable(self.before):
            outermost, _signals.telling = not _signals.telling, True
            try:
                self.before(number, frame)
            finally:
                _signals.telling = not outermost
        elif certainly:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


class _Signals:
    """The listeners of this process, and the handler while it is in place."""

    def __init__(self) -> None:
        self.listeners: list[weakref.ref[Told]] = []
        self.handler: Handler | None = None
        self.telling = False  # an outer handler of ours has told them

    def to_be_told(self) -> list[Told]:
        """The listeners, once for each signal."""
        return [] if self.telling else [found for ref in self.listeners if (found := ref()) is not None]

    def take(self) -> None:
        """Put ours in place, where that is allowed; a handler that was not set from Python cannot be put back and is left alone."""
        if threading.current_thread() is not threading.main_thread():
            return
        before: Any = signal.getsignal(signal.SIGTERM)
        if before is not None and (before is not self.handler or self.handler is None):
            self.handler = Handler(before)
            signal.signal(signal.SIGTERM, self.handler)

    def give_back(self) -> None:
        """Put back what was there, unless somebody has put theirs in place of ours: theirs may call it."""
        if self.handler is None or threading.current_thread() is not threading.main_thread():
            return
        in_place: Any = signal.getsignal(signal.SIGTERM)
        if in_place is self.handler:
            signal.signal(signal.SIGTERM, self.handler.before)
        self.handler = None


_signals = _Signals()


def until_told(listener: Told) -> Callable[[], None]:
    """Tell `listener`, held weakly, when SIGTERM comes, until the returned function is called."""
    ref = weakref.ref(listener)
    _signals.listeners.append(ref)
    _give_back_in_children()
    _signals.take()

    def undo() -> None:
        if ref in _signals.listeners:
            _signals.listeners.remove(ref)
        if not _signals.listeners:
            _signals.give_back()

    return undo


@functools.cache
def _give_back_in_children() -> None:
    """A forked child dies of the signal as it would have, and at once."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_signals.give_back)
