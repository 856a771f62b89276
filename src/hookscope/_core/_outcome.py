"""How the process ends, as far as one can tell from inside it at exit."""

from __future__ import annotations

import sys
from typing import Literal


def process_outcome() -> Literal["finished", "failed", "interrupted"]:
    """`failed` after an exception that nobody caught, `interrupted` after Ctrl-C; an interactive interpreter goes on after both."""
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_type", None)
    if error is None:
        return "finished"
    return "failed" if issubclass(error, Exception) else "interrupted"
