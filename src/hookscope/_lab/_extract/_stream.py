"""`extract(..., to=)`: the features of a whole dataset, batch by batch to disk, gone on with where an earlier run was stopped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..._core._errors import FeaturesError
from ..._core._select import Selectable
from ..._features import Features
from ..._features._batch import Batch
from ..._features._manifest import Plan
from ..._features._parts import rank_folder
from ..._features._writer import FeatureWriter
from ..._record._meta import launched
from .._batch import batches, some
from ._extractor import Extractor
from ._fingerprint import Marks
from ._identity import identity
from ._options import Options
from ._pieces import mask_of, pieces
from ._progress import progress
from ._sample_count import count_samples
from ._sample_ids import SampleIds
from ._store import Store, as_store


def extract_to(model: nn.Module, loader: Any, select: Selectable, *, to: Any, options: Options) -> Features:
    """Write what `select` names, for all batches of `loader`, and open it."""
    store, given = as_store(to), batches(loader)
    extractor = Extractor(model, select, options)
    rank, world_size = store.rank or _launched()
    folder = store.folder / rank_folder(rank, world_size) if world_size > 1 else store.folder
    plan = Plan(identity(model, select, extractor.options, store), store.storage, rank, world_size, torch=torch.__version__)
    ids = SampleIds(store, loader, world_size)
    with FeatureWriter(folder, plan, resume=store.resume, overwrite=store.overwrite) as writer:
        stream = Stream(extractor, store, writer, ids)
        if writer.complete:
            stream.compare(given)
        else:
            stream.run(given)
    return Features(folder)


def _launched() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return launched("RANK", 0), launched("WORLD_SIZE", 1)


class Stream:
    """Batches from a loader through a model to a writer; those that are stored already are only looked at."""

    def __init__(self, extractor: Extractor, store: Store, writer: FeatureWriter, ids: SampleIds) -> None:
        self._extractor, self._store, self._writer, self._ids = extractor, store, writer, ids
        self._marks = Marks()

    def run(self, batches: Iterable[Any]) -> None:
        """All batches. Raises `FeaturesError` where the loader does not repeat what is stored, `UsageError` where it is empty."""
        count = -1
        stored = self._writer.batches
        self._ids.skip(self._writer.samples)
        with self._extractor, progress(self._store.progress, _length(batches)) as advance:
            for count, batch in enumerate(some(batches)):
                mark = self._marks.add(batch)
                if count < stored:
                    self._check(count, mark)
                else:
                    self._writer.write(self._features(batch, mark))
                advance()
        if count + 1 < stored:
            raise self._other(f"it gave {count + 1} batches, and {stored} are stored")
        self._ids.end()
        if self._ids.may_repeat:
            self._writer.refuse_repeats()
        self._writer.finish()

    def compare(self, batches: Iterable[Any]) -> None:
        """Raise where a complete extraction was of another loader, as far as its first batch and its length tell."""
        manifest = self._writer.manifest
        assert manifest is not None
        length = _length(batches)
        if length is not None and length != manifest.batches:
            raise self._other(f"it has {length} batches, and {manifest.batches} are stored")
        for batch in batches:
            self._check(0, self._marks.add(batch))
            return
        raise self._other("it gave no batch")

    def _features(self, batch: Any, mark: str) -> Batch:
        found = self._extractor.run(batch, alone=False)
        samples = count_samples(batch, iter(found.values()))
        ids, index = self._ids.of(batch, samples)
        return Batch(pieces(found, samples, mask_of(batch, self._store.mask, found)), ids, mark, index)

    def _check(self, count: int, mark: str) -> None:
        """Compare with what was stored: the first batch, and the mark of all batches up to each commit."""
        manifest = self._writer.manifest
        assert manifest is not None
        if count == 0 and mark != manifest.first_batch:
            raise self._other("its first batch is not the one that was stored")
        for commit in self._writer.commits:
            if commit.batches == count + 1 and commit.mark != mark:
                raise self._other(f"its first {count + 1} batches are not those that were stored")

    def _other(self, what: str) -> FeaturesError:
        return FeaturesError(
            f"the loader does not repeat the one whose features are in {self._writer.folder}: {what}. Give it the same order and the same "
            "values each time (shuffle=False, no random augmentation), or pass to=hookscope.Store(path, overwrite=True)"
        )


def _length(batches: Any) -> int | None:
    try:
        return len(batches)
    except TypeError:  # an IterableDataset, a generator
        return None
