"""Which samples a batch holds: their ids, and among several processes their places in the dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

from ..._core._errors import UsageError
from ..._features._batch import Ids
from ..._features._dtypes import Array
from ..._features._repeats import Recent
from ._pieces import _named
from ._store import Store


class SampleIds:
    """Asked batch by batch, in the order of the loader."""

    def __init__(self, store: Store, loader: Any, world_size: int) -> None:
        self._asked, self._places, self._loader = store.ids, places(loader), loader
        own = callable(self._asked) or isinstance(self._asked, str)
        if world_size > 1 and self._places is None and not own:
            raise UsageError(
                f"{world_size} processes extract, and without a DistributedSampler it is not known which samples are this one's: "
                "give ids= as a function of a batch, or rank=(0, 1) in hookscope.Store(...) if this process extracts everything"
            )
        self.may_repeat = own  # a list was looked through before anything ran
        self._recent = Recent()
        self._keeps_places = world_size > 1
        self._taken = 0
        if self._asked is not None and not own:
            _check_list(self._asked, loader)

    def skip(self, samples: int) -> None:
        """Pass over so many."""
        self._taken += samples
        self._recent.skip(samples)

    def end(self) -> None:
        """The loader has given all. Raises `UsageError` where a list has ids for more samples than came."""
        given = self._asked
        if given is None or callable(given) or isinstance(given, str) or self._keeps_places or self._places is not None:
            return
        if self._taken < len(given) and not getattr(self._loader, "drop_last", False):
            raise UsageError(f"there are {len(given)} ids, and the loader gave {self._taken} samples: give one for each")

    def of(self, batch: Any, samples: int) -> tuple[Ids, Array | None]:
        """The ids of the next batch, and the places in the dataset where they are told. Raises `UsageError` for an id that comes again."""
        index = self._index(samples)
        self._taken += samples
        ids = _checked(self._ids(batch, index), samples)
        if self.may_repeat:
            self._recent.add(ids)
        return ids, index if self._keeps_places and self._places is not None else None

    def _index(self, samples: int) -> Array:
        stretch = np.arange(self._taken, self._taken + samples, dtype=np.int64)
        if self._places is None:
            return stretch
        if stretch.size and stretch[-1] >= len(self._places):
            raise UsageError(f"the loader gives more samples than its sampler has, {len(self._places)}: give ids= as a function of a batch")
        return self._places[stretch]

    def _ids(self, batch: Any, index: Array) -> Any:
        asked = self._asked
        if asked is None:
            return index
        if callable(asked):
            return asked(batch)
        if isinstance(asked, str):
            return _named(batch, asked)
        if index.size and index.max() >= len(asked):
            raise UsageError(f"there are {len(asked)} ids, and the loader gives a sample {int(index.max())}: give one for each")
        return [asked[i] for i in index]


def _check_list(ids: Any, loader: Any) -> None:
    """What can be known to be wrong before anything has run."""
    dataset, sampler = getattr(loader, "dataset", None), getattr(loader, "sampler", None)
    if isinstance(dataset, Sized) and isinstance(sampler, SequentialSampler | RandomSampler) and len(ids) != len(dataset):
        raise UsageError(f"there are {len(ids)} ids, and the dataset has {len(dataset)} samples: give one for each")
    if len(set(ids)) < len(ids):
        twice = next(name for name, count in Counter(ids).items() if count > 1)
        raise UsageError(f"ids name {twice!r} more than once: give each sample an id of its own")


def places(loader: Any) -> Array | None:
    """The places in the dataset of what a distributed sampler gives, in its order; None without one."""
    sampler = getattr(loader, "sampler", None)
    return np.fromiter(sampler, np.int64) if isinstance(sampler, DistributedSampler) else None


def _checked(given: Any, samples: int) -> Ids:
    ids = given.detach().cpu().numpy() if isinstance(given, torch.Tensor) else given
    if not isinstance(ids, np.ndarray):
        ids = np.asarray(list(ids)) if len(ids) else np.zeros(0, np.int64)
    if ids.ndim != 1 or len(ids) != samples:
        raise UsageError(f"there are ids of shape {ids.shape} for a batch of {samples} samples: give one for each")
    if ids.dtype.kind in "iu":
        return ids.astype(np.int64)
    if ids.dtype.kind in "UO" and all(isinstance(name, str) for name in ids.tolist()):
        return [str(name) for name in ids]
    raise UsageError(f"{ids.tolist()[0]!r} is no id: give whole numbers or text")
