"""The directories that make up one extraction: one of a single process, or one of each rank, in the order of the samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .._core._errors import FeaturesError
from . import _commits
from ._batch import Ids
from ._commits import read_commits
from ._dtypes import Array
from ._ids_column import read_ids
from ._manifest import NAME, Manifest, read_manifest


@dataclass(frozen=True, slots=True)
class Part:
    """One directory and what it says of itself."""

    folder: Path
    manifest: Manifest

    @property
    def ids(self) -> Ids:
        """The ids, in the order of the file."""
        return read_ids(self.folder, self.manifest.samples)

    @property
    def index(self) -> Array | None:
        """Each sample's place in the whole dataset, where a distributed sampler told it."""
        path = self.folder / "index.npy"
        return np.load(path, mmap_mode="r")[: self.manifest.samples] if path.exists() else None


def rank_folder(rank: int, world_size: int) -> str:
    """Where in the directory a rank writes."""
    return f"rank-{rank:05d}-of-{world_size:05d}"


def find_parts(root: Path, *, partial: bool) -> tuple[Part, ...]:
    """The parts, all of them, complete unless `partial`; FeaturesError where they are not."""
    if not root.is_dir():
        raise FeaturesError(f"there are no features at {root}: {'it is a file' if root.exists() else 'there is no such directory'}")
    if (root / NAME).exists():
        return (_part(root, partial=partial),)
    folders = sorted(path for path in root.glob("rank-*-of-*") if (path / NAME).exists())
    if not folders:
        raise FeaturesError(f"there are no features at {root}: it has no {NAME}")
    parts = tuple(_part(folder, partial=partial) for folder in folders)
    _all_there(root, parts)
    return parts


def _part(folder: Path, *, partial: bool) -> Part:
    manifest = read_manifest(folder)
    if manifest.complete:
        return Part(folder, manifest)
    commits = read_commits(folder)
    samples = commits[-1].samples if commits else 0
    if not partial:
        raise FeaturesError(
            f"the features at {folder} are incomplete, {samples} samples so far: run the same hookscope.extract again to finish them, "
            "or read what there is with Features(path, partial=True)"
        )
    if not commits:
        raise FeaturesError(f"the features at {folder} have no samples yet: {_commits.NAME} has no whole line")
    return Part(folder, replace(manifest, batches=commits[-1].batches, samples=samples, extents=commits[-1].extents))


def _all_there(root: Path, parts: Sequence[Part]) -> None:
    size = parts[0].manifest.plan.world_size
    missing = sorted(set(range(size)) - {part.manifest.plan.rank for part in parts})
    if missing or len(parts) != size:
        raise FeaturesError(
            f"the features at {root} are not of one extraction by {size} ranks: "
            + (f"rank {', '.join(map(str, missing))} has written nothing" if missing else f"there are {len(parts)} parts")
        )
    first = parts[0].manifest
    for part in parts[1:]:
        same = part.manifest.plan.what == first.plan.what
        if not same or [(e.key, e.dtype, e.stem) for e in part.manifest.entries] != [(e.key, e.dtype, e.stem) for e in first.entries]:
            raise FeaturesError(f"{part.folder} and {parts[0].folder} hold features of different models, selections or options")


def order_of(parts: Sequence[Part]) -> Array | None:
    """At which position, the parts laid end to end, each sample lies; None if that is the order.

    Ranks are put in order by the places that a distributed sampler told, else by ids that are whole numbers. A sample that several ranks
    hold, since a sampler pads, counts once.
    """
    if len(parts) == 1:
        return None
    places = [part.index for part in parts]
    keys = [key for key in places if key is not None]
    if len(keys) < len(parts):
        keys = [key for key in (part.ids for part in parts) if not isinstance(key, list)]
    if len(keys) < len(parts):
        return None
    _, first = np.unique(np.concatenate(keys), return_index=True)
    order: Array = first.astype(np.int64)
    return order
