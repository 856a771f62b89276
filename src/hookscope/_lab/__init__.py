"""On-demand work that runs the model itself."""

from ._dead_neurons import diagnose_dead_neurons
from ._find_nonfinite import find_nonfinite
from ._replay import replay

__all__ = ["diagnose_dead_neurons", "find_nonfinite", "replay"]
