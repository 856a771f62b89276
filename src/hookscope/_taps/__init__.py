"""Places hooks, removes them, and keeps the clock of micro-batches and steps."""

from ._inventory import sites

__all__ = ["sites"]
