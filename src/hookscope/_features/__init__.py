"""Extracted features on disk: written batch by batch, gone on with after any end, read without torch."""

from ._feature import Feature
from ._features import Features

__all__ = ["Feature", "Features"]
