"""On-demand work that runs the model itself."""

from ._analyze import Analysis, Similarity, analyze, cka
from ._dead_neurons import diagnose_dead_neurons
from ._diff import Comparison, diff, record_reference
from ._extract import Extracted, Pool, Store, capture, extract
from ._find_nonfinite import find_nonfinite
from ._replay import replay

__all__ = [
    "Analysis",
    "Comparison",
    "Extracted",
    "Pool",
    "Similarity",
    "Store",
    "analyze",
    "capture",
    "cka",
    "diagnose_dead_neurons",
    "diff",
    "extract",
    "find_nonfinite",
    "record_reference",
    "replay",
]
