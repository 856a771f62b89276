"""The other way to store: for each site a folder of files of about as many bytes each, never changed once they are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ._batch import Batch, Ids, Piece
from ._dtypes import Array
from ._entry import Entry
from ._extent import Extent
from ._shard import Shard, shard_paths, write_shard

SHARD_BYTES = 1 << 26  # of all sites together; what is held in memory meanwhile


class ShardStore:
    """Batches are held until they are `SHARD_BYTES`; where a shard ends depends on nothing but the batches, so a resumed one is equal."""

    anytime = False

    def __init__(self, folder: Path, entries: Sequence[Entry], storage: str) -> None:
        self._folder, self._entries, self._storage = folder, {entry.key: entry for entry in entries}, storage
        self._extents = {entry.stem: Extent() for entry in entries}
        self._held: list[Batch] = []

    @property
    def extents(self) -> dict[str, Extent]:
        """What is in shards, by stem."""
        return dict(self._extents)

    def append(self, batch: Batch) -> None:
        """Hold one batch."""
        self._held.append(batch)

    def full(self, unsettled: int, _seconds: float) -> bool:
        """Whether a shard is due."""
        return unsettled >= SHARD_BYTES

    def settle(self) -> None:
        """Write what is held as one shard for each site."""
        if not self._held:
            return
        ids = _joined_ids([batch.ids for batch in self._held])
        for number, piece in enumerate(self._held[0].pieces):
            entry = self._entries[piece.key]
            shard = joined([batch.pieces[number] for batch in self._held], ids)
            before = self._extents[entry.stem]
            write_shard(self._folder, entry, shard, number=before.shards, storage=self._storage)
            ragged = before.ragged or shard.offsets is not None or shard.values.shape[1:] != entry.shape
            self._extents[entry.stem] = Extent(before.samples + len(ids), before.rows + len(shard.values), ragged, before.shards + 1)
        self._held.clear()

    def holds(self, extents: Mapping[str, Extent]) -> bool:
        """Whether the shards are there."""
        return all(len(shard_paths(self._folder, stem, self._storage)) >= extent.shards for stem, extent in extents.items())

    def rewind(self, extents: Mapping[str, Extent]) -> None:
        """Delete the shards beyond that."""
        for stem, extent in extents.items():
            for path in shard_paths(self._folder, stem, self._storage)[extent.shards :]:
                path.unlink()
        self._extents = dict(extents)
        self._held.clear()

    def close(self) -> None:
        """Forget what is held."""
        self._held.clear()


def joined(pieces: Sequence[Piece], ids: Ids) -> Shard:
    """The pieces of one site behind one another; sequences laid end to end as soon as two differ in length."""
    if all(piece.lengths is None for piece in pieces) and len({piece.values.shape[1:] for piece in pieces}) == 1:
        return Shard(np.concatenate([piece.values for piece in pieces]), None, ids)
    lengths = np.concatenate([_lengths(piece) for piece in pieces])
    values = np.concatenate([_flat(piece) for piece in pieces])
    return Shard(values, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]), ids)


def _lengths(piece: Piece) -> Array:
    return np.full(piece.samples, piece.values.shape[1], np.int64) if piece.lengths is None else piece.lengths


def _flat(piece: Piece) -> Array:
    return piece.values.reshape(-1, *piece.values.shape[2:]) if piece.lengths is None else piece.values


def _joined_ids(ids: Sequence[Ids]) -> Ids:
    if any(isinstance(some, list) for some in ids):
        return [name for some in ids for name in some]
    return np.concatenate(ids)
