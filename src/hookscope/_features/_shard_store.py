"""The other way to store: for each site a folder of files of about as many bytes each, never changed once they are there."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from .._core._errors import FeaturesError
from ._batch import Batch
from ._entry import Entry
from ._extent import Extent
from ._open_shard import OPENED, OpenShard
from ._shard import shard_path, shard_paths

SHARD_BYTES = 1 << 26  # of all sites together


class ShardStore:
    """A shard is open until it has `SHARD_BYTES`; where it ends depends on nothing but the batches, so a resumed one is equal."""

    anytime = False

    def __init__(self, folder: Path, entries: Sequence[Entry], storage: str) -> None:
        self._folder, self._entries, self._storage = folder, {entry.key: entry for entry in entries}, storage
        self._extents = {entry.stem: Extent() for entry in entries}
        self._open: dict[tuple[str, int], OpenShard] = {}
        self._samples = 0
        self._failed = False

    @property
    def extents(self) -> dict[str, Extent]:
        """What is in shards, by stem."""
        return dict(self._extents)

    def append(self, batch: Batch) -> None:
        """Take one batch; after a failure nothing more is taken, since shards that are open hold earlier ones, too."""
        if self._failed:
            raise FeaturesError(f"a batch could not be written to {self._folder}: what was committed is gone on with by a new extraction")
        try:
            for piece in batch.pieces:
                if piece.key not in self._open:
                    self._open[piece.key] = self._opened(self._entries[piece.key])
                self._open[piece.key].append(piece, batch.ids)
        except BaseException:
            self._failed = True
            self._discard()
            raise
        self._samples += len(batch.ids)

    def _opened(self, entry: Entry) -> OpenShard:
        path = shard_path(self._folder, entry.stem, self._extents[entry.stem].shards, self._storage)
        return OPENED[self._storage](path, entry)

    def full(self, unsettled: int, _seconds: float) -> bool:
        """Whether a shard is due."""
        return unsettled >= SHARD_BYTES

    def settle(self) -> None:
        """End the shard that is open of each site."""
        for key, shard in self._open.items():
            entry = self._entries[key]
            before = self._extents[entry.stem]
            rows, ragged, shape = shard.finish()
            ragged = before.ragged or ragged or shape != entry.shape
            self._extents[entry.stem] = Extent(before.samples + self._samples, before.rows + rows, ragged, before.shards + 1)
        self._open.clear()
        self._samples = 0

    def holds(self, extents: Mapping[str, Extent]) -> bool:
        """Whether the shards are there."""
        return all(len(shard_paths(self._folder, stem, self._storage)) >= extent.shards for stem, extent in extents.items())

    def rewind(self, extents: Mapping[str, Extent]) -> None:
        """Delete the shards beyond that."""
        self._discard()
        for stem, extent in extents.items():
            for path in shard_paths(self._folder, stem, self._storage)[extent.shards :]:
                path.unlink()
        self._extents = dict(extents)

    def close(self) -> None:
        """Leave nothing of a shard that is open."""
        self._discard()

    def _discard(self) -> None:
        for shard in self._open.values():
            with contextlib.suppress(OSError):
                shard.discard()
        self._open.clear()
        self._samples = 0
