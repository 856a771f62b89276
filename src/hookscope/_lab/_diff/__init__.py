"""Two models, or one in two processes, on one batch: where they first part, and why."""

from ._comparison import Comparison
from ._diff import diff
from ._reference import record_reference

__all__ = ["Comparison", "diff", "record_reference"]
