"""While an edit is on, what `torch.compile` has compiled runs as it was written, so that hooks on it are called."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import torch

_lock = threading.Lock()
_edits = 0
_stance: list[object] = []


def run_uncompiled() -> Callable[[], None]:
    """Set the compiler's stance to `force_eager` until the returned function, and that of every other edit, has been called.

    Nothing is done where no compiler has been loaded: then nothing is compiled, and what is compiled later meets the hooks (`_hook.py`).
    """
    global _edits  # noqa: PLW0603  # the stance is the process's own
    if "torch._dynamo" not in sys.modules:
        return lambda: None
    with _lock:
        if not _edits:
            _stance.append(torch.compiler.set_stance("force_eager"))
        _edits += 1
    return _once(_restore)


def _restore() -> None:
    global _edits  # noqa: PLW0603  # as above
    with _lock:
        _edits -= 1
        if not _edits:
            _stance.pop().__exit__(None, None, None)  # type: ignore[attr-defined]  # puts back what was there before


def _once(action: Callable[[], None]) -> Callable[[], None]:
    todo = [action]

    def run() -> None:
        if todo:
            todo.pop()()

    return run
