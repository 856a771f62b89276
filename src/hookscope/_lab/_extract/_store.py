"""Where and how the features of a dataset are stored: what may be given as `to=`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch

from ..._core._errors import UsageError
from ..._core._names import near

Storage = Literal["npy", "safetensors", "parquet"]
_STORAGES: tuple[Storage, ...] = get_args(Storage)
Ids: TypeAlias = "Sequence[str] | Sequence[int] | np.ndarray[Any, Any] | str | Callable[[Any], Any]"
Mask: TypeAlias = "str | Callable[[Any], torch.Tensor]"


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """A directory for the features of a dataset, with the ways to fill it; `to="feats"` is short for `to=Store("feats")`.

    - `ids`: what the samples are called, whole numbers or text. A sequence for the whole dataset, in its order; or the name of an entry in
      batches that are dicts; or a function of a batch. None counts the samples from 0: with a `DistributedSampler` their places in the
      dataset, else their places in the loader.
    - `mask`: which positions of a sequence are no padding, so that each sample is stored in its own length: the name of the mask in batches
      that are dicts, or a function of a batch, of shape (samples, positions). Sites that do not give (samples, positions, channels) are
      stored whole.
    - `storage`: `"npy"`, one plain .npy file a site; `"safetensors"` or `"parquet"`, a folder of shards of about 64 MiB a site, Parquet
      with the ids beside the values.
    - `resume`: whether an extraction that was stopped is gone on with, and a complete one returned as it is; False refuses both.
    - `overwrite`: whether an earlier extraction is deleted first.
    - `progress`: whether a bar is shown on standard error; None shows one where that is a terminal.
    - `rank`: this process's number and how many there are; None asks torch.distributed, then `RANK` and `WORLD_SIZE` as torchrun sets
      them. Each writes a directory of its own; `(0, 1)` says that this process extracts alone.

    Raises `UsageError` for what cannot be right.

    >>> Store("feats", storage="parquet", ids="image_id").storage
    'parquet'
    >>> Store("feats", storage="parkuet")
    Traceback (most recent call last):
    ...
    hookscope._core._errors.UsageError: storage='parkuet' is unknown: did you mean 'parquet'? choose one of npy, safetensors, parquet
    """

    path: str | os.PathLike[str]
    ids: Ids | None = None
    mask: Mask | None = None
    storage: Storage = "npy"
    resume: bool = True
    overwrite: bool = False
    progress: bool | None = None
    rank: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.storage not in _STORAGES:
            close = near(str(self.storage), _STORAGES)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(f"storage={self.storage!r} is unknown: {hint}choose one of {', '.join(_STORAGES)}")
        if not (self.mask is None or isinstance(self.mask, str) or callable(self.mask)):
            raise UsageError(f"mask is a {type(self.mask).__name__}: give the name of the mask in the batches, or a function of a batch")
        if self.rank is not None:
            _check_rank(self.rank)

    @property
    def folder(self) -> Path:
        """The directory."""
        return Path(self.path)


def _check_rank(rank: Any) -> None:
    right = isinstance(rank, tuple) and len(rank) == 2 and all(isinstance(n, int) for n in rank) and 0 <= rank[0] < rank[1]
    if not right:
        raise UsageError(f"rank={rank!r} is no place among processes: give this one's number from 0 and how many there are, such as (0, 2)")


def as_store(to: Any) -> Store:
    """The store that is meant. Raises `UsageError` for what is none."""
    if isinstance(to, Store):
        return to
    if not isinstance(to, str | os.PathLike):
        raise UsageError(f"to={to!r} is no directory: give a path, or a hookscope.Store")
    return Store(to)
