"""On-demand work that runs the model itself."""

from ._dead_neurons import diagnose_dead_neurons
from ._extract import Extracted, Pool, Store, capture, extract
from ._find_nonfinite import find_nonfinite
from ._replay import replay

__all__ = ["Extracted", "Pool", "Store", "capture", "diagnose_dead_neurons", "extract", "find_nonfinite", "replay"]
