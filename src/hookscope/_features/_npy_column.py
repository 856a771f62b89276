"""One site in one growing .npy file, with a second one of offsets from the moment its samples differ in length."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .._core._errors import FeaturesError
from ._batch import Piece
from ._dtypes import stored
from ._entry import Entry
from ._extent import Extent
from ._npy import GrowingNpy

_INT64 = np.dtype("<i8")


def npy_paths(folder: Path, stem: str) -> tuple[Path, Path]:
    """Where the values lie, and where the offsets."""
    return folder / f"{stem}.npy", folder / f"{stem}.offsets.npy"


class NpyColumn:
    """Appends what batches give; `extent` is what has been appended.

    As long as all samples have one shape the file has the shape (samples, *sample). The bytes are the same as those of
    (steps of all samples, *step), so that a file can become ragged at any sample: only its header changes, and the offsets are added.
    """

    def __init__(self, folder: Path, entry: Entry) -> None:
        self.entry, self.extent = entry, Extent()
        self._values_path, self._offsets_path = npy_paths(folder, entry.stem)
        self._values = GrowingNpy(self._values_path, stored(entry.dtype))
        self._offsets: GrowingNpy | None = GrowingNpy(self._offsets_path, _INT64) if self._offsets_path.exists() else None

    def append(self, piece: Piece) -> None:
        """Write the values of one batch; an OSError leaves the column to be rewound."""
        ragged = self.extent.ragged or piece.lengths is not None or piece.values.shape[1:] != self.entry.shape
        if ragged:
            self._append_lengths(piece)
        self._values.append(piece.values)
        steps = np.prod(piece.values.shape[: 2 if ragged and piece.lengths is None else 1], dtype=np.int64)
        rows = self._steps if ragged else self.extent.rows
        self.extent = Extent(self.extent.samples + piece.samples, rows + int(steps), ragged)

    @property
    def _steps(self) -> int:
        """The rows so far, counted as steps of sequences."""
        return self.extent.rows if self.extent.ragged or not self.extent.samples else self.extent.rows * self.entry.shape[0]

    def _append_lengths(self, piece: Piece) -> None:
        if self._offsets is None:
            self._offsets = GrowingNpy(self._offsets_path, _INT64)
            self._offsets.cut((0,))
            length = self.entry.shape[0]
            self._offsets.append(np.arange(self.extent.samples + 1, dtype=np.int64) * length)
        lengths = np.full(piece.samples, piece.values.shape[1], np.int64) if piece.lengths is None else piece.lengths
        self._offsets.append(self._steps + np.cumsum(lengths, dtype=np.int64))

    def holds(self, extent: Extent) -> bool:
        """Whether the files are at least as long as that."""
        enough = self._values.holds(extent.shape(self.entry))
        if not extent.ragged or not enough:
            return enough
        return self._offsets is not None and self._offsets.holds((extent.samples + 1,))

    def rewind(self, extent: Extent) -> None:
        """Forget what was appended beyond that."""
        self._values.cut(extent.shape(self.entry))
        if extent.ragged:
            assert self._offsets is not None
            self._offsets.cut((extent.samples + 1,))
        else:
            self._close_offsets()
            self._offsets_path.unlink(missing_ok=True)
        self.extent = extent

    def settle(self) -> None:
        """Let the headers tell of everything that was appended."""
        self._values.settle(self.extent.shape(self.entry))
        if self._offsets is not None:
            self._offsets.settle((self.extent.samples + 1,))

    def close(self) -> None:
        """Let go of the files."""
        self._values.close()
        self._close_offsets()

    def _close_offsets(self) -> None:
        if self._offsets is not None:
            self._offsets.close()
            self._offsets = None


def checked(piece: Piece, entry: Entry) -> None:
    """Raise where the piece cannot stand behind what the entry's file holds: another type, or another shape in more than the length."""
    if piece.dtype != entry.dtype:
        raise FeaturesError(
            f"{entry.site.name} gives {piece.dtype} now and gave {entry.dtype} before: pass dtype=torch.{entry.dtype} to have one type"
        )
    got = piece.values.shape[1:] if piece.lengths is None else (0, *piece.values.shape[1:])
    if len(got) != len(entry.shape) or (got[1:] != entry.shape[1:]) or (got != entry.shape and not got):
        raise FeaturesError(
            f"{entry.site.name} gives samples of shape {got} now and gave {entry.shape} before: only the first dimension of a sample may "
            "differ in length; pool them with pool='mean', or reshape them with a function given as pool="
        )
