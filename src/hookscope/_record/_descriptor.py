"""Files that are none of the three standard ones, where a program has closed one of those: what is written to it is no part of a run."""

from __future__ import annotations

import os
from pathlib import Path

_LOW = 2  # stdin, stdout and stderr have the descriptors up to this one


def open_apart(path: str | Path, flags: int) -> int:
    """As `os.open`, and never descriptor 0, 1 or 2, which the system gives again once they are free."""
    low, found = [], os.open(path, flags, 0o666)
    while found <= _LOW:
        low.append(found)
        found = os.dup(found)
    for descriptor in low:
        os.close(descriptor)
    return found
