"""What a data set says about the units and layers of a model, and how alike layers are."""

from ._analysis import Analysis
from ._analyze import analyze
from ._cka import Similarity, cka

__all__ = ["Analysis", "Similarity", "analyze", "cka"]
