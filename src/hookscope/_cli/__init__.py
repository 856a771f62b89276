"""The command line: one file a verb, and one list of them."""

from ._main import main

__all__ = ["main"]
