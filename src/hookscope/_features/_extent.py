"""How much of a site has been stored: what a commit says and what the bytes are read by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ._entry import Entry


@dataclass(frozen=True, slots=True)
class Extent:
    """`rows` counts the entries along the first dimension of the file: samples, or steps of sequences when they are `ragged`."""

    samples: int = 0
    rows: int = 0
    ragged: bool = False
    shards: int = 0

    def to_json(self) -> list[int]:
        """Four numbers."""
        return [self.samples, self.rows, int(self.ragged), self.shards]

    def shape(self, entry: Entry) -> tuple[int, ...]:
        """The shape of the values on disk."""
        return (self.rows, *(entry.shape[1:] if self.ragged else entry.shape))


def extent_from_json(found: Sequence[int]) -> Extent:
    """The extent that was written; ValueError if it was not."""
    samples, rows, ragged, shards = map(int, found)
    return Extent(samples, rows, bool(ragged), shards)


def extents_from_json(found: Mapping[str, Any]) -> dict[str, Extent]:
    """The extents by stem."""
    return {stem: extent_from_json(numbers) for stem, numbers in found.items()}
