"""Tensors from inside a model: of one call of it (`extract`), or of a loop of the user's own (`capture`)."""

from ._capture import capture
from ._extract import extract
from ._extracted import Extracted
from ._pool import Pool
from ._store import Store

__all__ = ["Extracted", "Pool", "Store", "capture", "extract"]
