"""On-demand work that runs the model itself."""

from ._dead_neurons import diagnose_dead_neurons

__all__ = ["diagnose_dead_neurons"]
