"""The run: written to disk or memory, read back as numbers per step. Imports no torch; README.md says what it promises."""

from __future__ import annotations

from ._columns import Rows
from ._incident import Incident
from ._memory import MemoryWriter
from ._meta import Meta
from ._mirror import refuse_url
from ._run import Run
from ._series import Matrix, Series
from ._shares import FLAT, parts_in_all, shared
from ._sink import Sink
from ._sites import Sites
from ._summary import Summary
from ._writer import RunWriter

__all__ = [
    "FLAT",
    "Incident",
    "Matrix",
    "MemoryWriter",
    "Meta",
    "Rows",
    "Run",
    "RunWriter",
    "Series",
    "Sink",
    "Sites",
    "Summary",
    "parts_in_all",
    "refuse_url",
    "shared",
]
