"""The default way to store: for each site one plain .npy file, appended to batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ._batch import Batch
from ._entry import Entry
from ._extent import Extent
from ._npy_column import NpyColumn


class NpyStore:
    """Everything that was appended is in the files; `settle` makes them whole."""

    anytime = True

    def __init__(self, folder: Path, entries: Sequence[Entry], _storage: str) -> None:
        self._columns = {entry.key: NpyColumn(folder, entry) for entry in entries}

    def append(self, batch: Batch) -> None:
        """Write one batch; whatever fails, no column keeps any of it."""
        before = self.extents
        try:
            for piece in batch.pieces:
                self._columns[piece.key].append(piece)
        except BaseException:
            self.rewind(before)
            raise

    @property
    def extents(self) -> dict[str, Extent]:
        """What is stored, by stem."""
        return {column.entry.stem: column.extent for column in self._columns.values()}

    def full(self, unsettled: int, seconds: float) -> bool:
        """Whether it is time to settle: `unsettled` bytes and so many seconds after the last time."""
        return seconds >= 1 or unsettled >= 1 << 26

    def settle(self) -> None:
        """Make the files plain .npy files of everything that was appended."""
        for column in self._columns.values():
            column.settle()

    def holds(self, extents: Mapping[str, Extent]) -> bool:
        """Whether the files have at least that."""
        return all(column.holds(extents[column.entry.stem]) for column in self._columns.values())

    def rewind(self, extents: Mapping[str, Extent]) -> None:
        """Forget what was appended beyond that."""
        for column in self._columns.values():
            column.rewind(extents[column.entry.stem])

    def close(self) -> None:
        """Let go of the files."""
        for column in self._columns.values():
            column.close()
