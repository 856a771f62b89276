"""Two recorded runs against each other: where they part, and how much of that is more than noise."""

from ._compare import compare
from ._parting import RunComparison, SiteChange

__all__ = ["RunComparison", "SiteChange", "compare"]
