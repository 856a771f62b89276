"""A stretch of samples that lie together in one file, opened when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from .._core._errors import FeaturesError
from ._dtypes import Array, stored
from ._entry import Entry
from ._extent import Extent
from ._npy import HEADER
from ._npy_column import npy_paths
from ._shard import Shard, count_samples, read_shard, shard_paths

Mode = Literal["r", "c"]


@dataclass(slots=True)
class Chunk:
    """So many samples; `heavy` says that opening reads them into memory, where a map would not."""

    opener: Callable[[], Shard]
    samples: int
    heavy: bool = False
    _shard: Shard | None = field(default=None, repr=False)

    def opened(self) -> Shard:
        """Values and offsets."""
        if self._shard is None:
            self._shard = self.opener()
        return self._shard

    def forget(self) -> None:
        """Let go of what takes memory."""
        if self.heavy:
            self._shard = None


def chunks(folder: Path, entry: Entry, extent: Extent, *, storage: str, mode: Mode = "r") -> list[Chunk]:
    """The stretches of one site in one directory; FeaturesError if files are missing or shorter than they were.

    With mode `c` the maps may be written to, which changes nothing on disk.
    """
    if storage == "npy":
        return [Chunk(partial(_open_npy, folder, entry, extent, mode), extent.samples)]
    paths = shard_paths(folder, entry.stem, storage)
    if len(paths) < extent.shards:
        raise FeaturesError(f"{folder / entry.stem} has {len(paths)} of {extent.shards} shards: extract again with overwrite=True")
    return [
        Chunk(partial(read_shard, path, entry, mode), count_samples(path), heavy=storage == "parquet") for path in paths[: extent.shards]
    ]


def _open_npy(folder: Path, entry: Entry, extent: Extent, mode: Mode) -> Shard:
    values_path, offsets_path = npy_paths(folder, entry.stem)
    values = _mapped(values_path, entry.dtype, extent.shape(entry), mode)
    return Shard(values, _mapped(offsets_path, "int64", (extent.samples + 1,), "r") if extent.ragged else None, [])


def _mapped(path: Path, dtype: str, shape: tuple[int, ...], mode: Mode) -> Array:
    kind = stored(dtype)
    try:
        size = path.stat().st_size
    except OSError as problem:
        raise FeaturesError(f"cannot read {path}: {problem.strerror}") from problem
    wanted = HEADER + kind.itemsize * int(np.prod(shape, dtype=np.int64))
    if size < wanted:
        raise FeaturesError(f"{path} is cut short: it has {size} bytes of {wanted}; extract again with overwrite=True")
    return np.memmap(path, kind, mode, HEADER, shape) if 0 not in shape else np.empty(shape, kind)
