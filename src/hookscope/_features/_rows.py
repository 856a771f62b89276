"""How many rows the pieces of a site are behind one another, and whether these are samples or steps of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ._batch import Ids, Piece
from ._dtypes import Array


class Ended(NamedTuple):
    """How many rows a shard has, whether they are steps of sequences that differ in length, and the shape of one row."""

    rows: int
    ragged: bool
    shape: tuple[int, ...]


class Rows:
    """Counts pieces as they come; they are sequences laid end to end as soon as two differ in length."""

    def __init__(self) -> None:
        self._lengths: list[Array] = []
        self._shapes: dict[tuple[int, ...], None] = {}
        self._step: tuple[int, ...] = ()
        self.ragged = False

    def add(self, piece: Piece) -> None:
        """One more."""
        shape = piece.values.shape[1:]
        self._shapes[shape], self._step = None, shape[1:] if piece.lengths is None else shape
        self.ragged |= piece.lengths is not None or len(self._shapes) > 1
        self._lengths.append(lengths_of(piece))

    def ended(self) -> Ended:
        """What they are together."""
        if not self.ragged:
            return Ended(sum(map(len, self._lengths)), False, next(iter(self._shapes)))
        return Ended(sum(int(lengths.sum()) for lengths in self._lengths), True, self._step)

    def offsets(self) -> Array | None:
        """Where each sequence begins, and the last one ends."""
        return ends_of(np.concatenate(self._lengths)) if self.ragged else None


def lengths_of(piece: Piece) -> Array:
    """How many steps each sample has."""
    if piece.lengths is not None:
        return piece.lengths
    return np.full(piece.samples, piece.values.shape[1] if piece.values.ndim > 1 else 1, np.int64)


def ends_of(lengths: Array) -> Array:
    """0, and where each of these ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def joined_ids(ids: Sequence[Ids]) -> Ids:
    """All ids behind one another."""
    if any(isinstance(some, list) for some in ids):
        return [name for some in ids for name in some]
    return np.concatenate(ids)
