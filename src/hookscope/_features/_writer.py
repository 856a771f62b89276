"""Features being written: what was committed survives any end of the process, and the next one goes on behind it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from .._core._errors import FeaturesError
from ._batch import Batch
from ._claim import claim, remove, remove_leftovers
from ._commits import Commit, Journal, read_commits
from ._dtypes import stored
from ._entry import entries
from ._ids_column import NumbersColumn, TextsColumn
from ._lock import Lock
from ._manifest import Manifest, Plan
from ._npy_column import checked
from ._npy_store import NpyStore
from ._repeats import refuse_repeats
from ._shard_store import ShardStore
from ._store import Store


class FeatureWriter:
    """Write batches into a directory, which is created, or go on where an earlier writer was stopped.

    `complete` says that everything is there already. `commits` are those of the earlier writer, `batches` and `samples` how much of it is
    kept: the loader's first batches are those, and are to be passed over. `what` in the plan must be the same then.

    Every failure of the disk is a FeaturesError, and leaves what was committed. As a context manager it commits at the end what is whole.

    >>> import tempfile
    >>> import numpy as np
    >>> from hookscope._core._site import Site
    >>> from hookscope._features._batch import Piece
    >>> piece = Piece(Site(0, "fc", "output"), 0, "float32", np.ones((2, 3), np.float32))
    >>> folder = Path(tempfile.mkdtemp())
    >>> with FeatureWriter(folder, Plan({"model": "abc"})) as writer:
    ...     writer.write(Batch((piece,), np.arange(2), "mark"))
    ...     writer.finish()
    >>> np.load(folder / "fc.npy", mmap_mode="r").shape
    (2, 3)
    """

    def __init__(self, folder: Path, plan: Plan, *, resume: bool = True, overwrite: bool = False) -> None:
        self.folder, self._plan = folder, plan
        self.batches = self.samples = 0
        self.commits: list[Commit] = []
        self._store: Store | None = None
        self._ids: NumbersColumn | TextsColumn | None = None
        self._index: NumbersColumn | None = None
        self._journal = Journal(folder)
        self._mark, self._unsettled, self._settled = "", 0, time.monotonic()
        self._lock: Lock | None = None
        with self._told():
            self._manifest = claim(folder, plan, resume=resume, overwrite=overwrite)
            if not self.complete:
                self._lock = Lock(folder)
        try:
            with self._told():
                self._go_on()
        except BaseException:
            self._release()
            raise

    @property
    def complete(self) -> bool:
        """Whether all of it is there."""
        return self._manifest is not None and self._manifest.complete

    @property
    def manifest(self) -> Manifest | None:
        """What the directory says of itself; None before the first batch."""
        return self._manifest

    def write(self, batch: Batch) -> None:
        """Take one batch; whatever fails, nothing of it stays."""
        with self._told():
            if self._store is None:
                self._begin(batch)
            self._check(batch)
            self._append(batch)
            self.batches += 1
            self.samples += len(batch.ids)
            self._mark = batch.mark
            self._unsettled += batch.nbytes
            assert self._store is not None
            if self._store.full(self._unsettled, time.monotonic() - self._settled):
                self._commit()

    def refuse_repeats(self) -> None:
        """Raise `UsageError` if two samples have the same id."""
        with self._told():
            self._settle_ids()
            refuse_repeats(self.folder, self.samples)

    def finish(self) -> None:
        """Everything was written: make it complete."""
        assert self._store is not None
        assert self._manifest is not None
        with self._told():
            self._store.settle()
            self._settle_ids()
            self._manifest = replace(self._manifest, complete=True, batches=self.batches, samples=self.samples, extents=self._store.extents)
            self._manifest.write(self.folder)
            self._journal.remove()

    def close(self) -> None:
        """Commit what is whole, if the disk lets us, and let go of the files."""
        if self._store is not None and not self.complete and self._store.anytime and self._whole:
            with contextlib.suppress(OSError):
                self._commit()
        self._release()

    def __enter__(self) -> FeatureWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """A failure of the disk, in our words."""
        try:
            yield
        except FeaturesError:
            raise
        except OSError as problem:
            kept = self.commits[-1].samples if self.commits else 0
            left = f"; {kept} samples are kept, and the same call goes on behind them" if kept else ""
            raise FeaturesError(f"cannot write features to {self.folder}: {problem.strerror or problem}{left}") from problem

    def _go_on(self) -> None:
        """Open what an earlier writer left, at the newest commit that the files still hold."""
        remove_leftovers(self.folder)
        if self._manifest is not None and self.complete:
            self.batches, self.samples = self._manifest.batches, self._manifest.samples
        if self._manifest is None or self.complete:
            self._journal.remove()  # of a writer that was killed before the manifest, or behind it
            return
        commits = read_commits(self.folder)
        if not commits:
            remove(self.folder, self._manifest)
            self._manifest = None
            return
        self._open(texts=(self.folder / "ids.jsonl").exists(), index=(self.folder / "index.npy").exists())
        while commits and not self._holds(commits[-1]):
            commits.pop()
        if not commits:
            raise FeaturesError(f"files in {self.folder} are shorter than its first commit says: pass overwrite=True to extract anew")
        self._rewind(commits[-1])
        self._journal.keep(commits)
        self.commits, self.batches, self.samples, self._mark = commits, commits[-1].batches, commits[-1].samples, commits[-1].mark

    def _begin(self, batch: Batch) -> None:
        """The manifest first, so that no file is ever there that it does not tell of."""
        found = entries(batch.pieces)
        for entry in found:
            stored(entry.dtype)  # which raises where the type cannot be stored
        self._manifest = Manifest(self._plan, found, first_batch=batch.mark)
        self._manifest.write(self.folder)
        self._open(texts=isinstance(batch.ids, list), index=batch.index is not None)

    def _open(self, *, texts: bool, index: bool) -> None:
        assert self._manifest is not None
        kind = NpyStore if self._plan.storage == "npy" else ShardStore
        self._store = kind(self.folder, self._manifest.entries, self._plan.storage)
        self._ids = TextsColumn(self.folder / "ids.jsonl") if texts else NumbersColumn(self.folder / "ids.npy")
        self._index = NumbersColumn(self.folder / "index.npy") if index else None

    def _check(self, batch: Batch) -> None:
        assert self._manifest is not None
        known = {entry.key: entry for entry in self._manifest.entries}
        got = [piece.key for piece in batch.pieces]
        if sorted(got) != sorted(known):
            missing = ", ".join(name + (f", call {call}" if call else "") for name, call in sorted(set(known).symmetric_difference(got)))
            raise FeaturesError(f"batch {self.batches} does not give the sites that the first batch gave: {missing} differ")
        for piece in batch.pieces:
            checked(piece, known[piece.key])
            if piece.samples != len(batch.ids):
                raise FeaturesError(f"{piece.site.name} gives {piece.samples} samples, but there are {len(batch.ids)} ids")

    def _append(self, batch: Batch) -> None:
        assert self._store is not None
        assert self._ids is not None
        try:
            self._ids.append(batch.ids)
            if self._index is not None and batch.index is not None:
                self._index.append(batch.index)
            self._store.append(batch)
        except BaseException:
            for column in self._sample_columns:
                with contextlib.suppress(OSError):
                    column.rewind(self.samples)
            raise

    @property
    def _whole(self) -> bool:
        """Whether all files are at the same sample; not so if a Ctrl-C came between the last of them and the count."""
        assert self._store is not None
        counts = {extent.samples for extent in self._store.extents.values()} | {column.samples for column in self._sample_columns}
        return counts == {self.samples}

    @property
    def _sample_columns(self) -> list[NumbersColumn | TextsColumn]:
        return [column for column in (self._ids, self._index) if column is not None]

    def _commit(self) -> None:
        assert self._store is not None
        if self.commits and self.commits[-1].batches == self.batches:
            return
        self._store.settle()
        self._settle_ids()
        commit = Commit(self.batches, self.samples, self._mark, self._store.extents)
        self._journal.append(commit)
        self.commits.append(commit)
        self._unsettled, self._settled = 0, time.monotonic()

    def _settle_ids(self) -> None:
        for column in self._sample_columns:
            column.settle()

    def _holds(self, commit: Commit) -> bool:
        assert self._store is not None
        return self._store.holds(commit.extents) and all(column.holds(commit.samples) for column in self._sample_columns)

    def _rewind(self, commit: Commit) -> None:
        assert self._store is not None
        self._store.rewind(commit.extents)
        for column in self._sample_columns:
            column.rewind(commit.samples)

    def _release(self) -> None:
        for part in (self._store, self._ids, self._index):
            if part is not None:
                part.close()
        if self._lock is not None:
            self._lock.release()
