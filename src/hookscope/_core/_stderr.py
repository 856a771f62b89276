"""Whether what is written to stderr can go anywhere: a program may have closed it, as an object or as a descriptor."""

from __future__ import annotations

import os
import sys


def heard() -> bool:
    """What is written where this is False is an error, at once or in the flush when the process ends, which changes its exit status.

    >>> heard()
    True
    """
    if sys.stderr is None or sys.stderr.closed:
        return False
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):  # one that lives in memory, or a notebook's
        return True
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
