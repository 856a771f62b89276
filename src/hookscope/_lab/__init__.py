"""On-demand work that runs the model itself."""

from ._dead_neurons import diagnose_dead_neurons
from ._find_nonfinite import find_nonfinite

__all__ = ["diagnose_dead_neurons", "find_nonfinite"]
