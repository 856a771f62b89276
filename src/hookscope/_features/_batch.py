"""What one batch of a loader gives to be stored: for each site the values of its samples, as plain numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .._core._site import Site
from ._dtypes import Array

Ids: TypeAlias = "Array | list[str]"


@dataclass(frozen=True, slots=True)
class Piece:
    """The values of one site in one call: `values[i]` belongs to sample i of the batch.

    `dtype` is torch's name, `values` as `_dtypes.stored` has it. With `lengths` the samples are sequences laid end to end: the first
    `lengths[0]` entries of `values` belong to the first sample, and so on.
    """

    site: Site
    call: int
    dtype: str
    values: Array
    lengths: Array | None = None

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return len(self.values) if self.lengths is None else len(self.lengths)

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from the other pieces of a batch."""
        return self.site.name, self.call


@dataclass(frozen=True, slots=True)
class Batch:
    """All pieces of one batch, the ids of its samples, their places in the whole dataset where known, and the mark of all so far."""

    pieces: tuple[Piece, ...]
    ids: Ids
    mark: str
    index: Array | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of all values."""
        return sum(piece.values.nbytes for piece in self.pieces)
