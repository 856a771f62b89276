"""The sessions that are open: ended with the program, or where a new one takes their place."""

from __future__ import annotations

import atexit
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from .._core._outcome import process_outcome

if TYPE_CHECKING:
    from ._session import Session

_live: weakref.WeakSet[Session] = weakref.WeakSet()


def close_at_exit(session: Session) -> None:
    """Close it when the program ends, if it is not closed by then."""
    if not _live:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _live.add(session)


def end_recording_to(path: str) -> None:
    """Close the watches that still record to `path`: a cell of a notebook is run again, and they would write into its new run."""
    for session in list(_live):
        if getattr(session.sink, "path", None) == Path(path):
            session.close("finished")


def _close_all() -> None:
    for session in list(_live):
        session.close(process_outcome(), getattr(sys, "last_value", None))
        session.deliver(quietly=True)
