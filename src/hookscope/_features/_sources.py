"""From directories to what a `Feature` reads: its name, its files and the order of its samples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from .._core._errors import FeaturesError
from .._core._site import Site
from ._chunk import Chunk, Mode, chunks
from ._dtypes import Array
from ._entry import Entry
from ._extent import Extent
from ._feature import Feature, Source
from ._parts import Part, order_of
from ._shard import Shard

Place = tuple[Path, Entry, Extent, str]


def written(entry: Entry, *, call: bool) -> str:
    """The entry's key: `layer3`, `layer3:input`, and with `call` `layer3@1`."""
    site = entry.site
    kind = site.name.removeprefix(site.full_path)
    return f"{site.full_path}{f'@{entry.call}' if call else ''}{kind.removeprefix(':output') if not site.label else kind}"


def sources(parts: Sequence[Part]) -> dict[str, Source]:
    """What can be read, by key, in order of execution."""
    order = order_of(parts)
    manifest = parts[0].manifest
    reused = {entry.site.name for entry in manifest.entries if entry.call}
    found = {}
    for number, entry in enumerate(manifest.entries):
        places = [_place(part, number) for part in parts]
        ragged = any(extent.ragged for _, _, extent, _ in places) or len({own.shape for _, own, _, _ in places}) > 1
        _same_steps(places)
        name = written(entry, call=entry.site.name in reused)
        found[name] = Source(name, entry, ragged, partial(_open, tuple(places)), order)
    return found


def _place(part: Part, number: int) -> Place:
    entry = part.manifest.entries[number]
    return part.folder, entry, part.manifest.extents[entry.stem], part.manifest.plan.storage


def _same_steps(places: Sequence[Place]) -> None:
    if len({own.shape[1:] for _, own, _, _ in places}) > 1 or len({len(own.shape) for _, own, _, _ in places}) > 1:
        shapes = ", ".join(str(own.shape) for _, own, _, _ in places)
        raise FeaturesError(f"{places[0][1].site.name} has samples of shapes {shapes} on different ranks: pool them, so that they agree")


def _open(places: Sequence[Place], mode: Mode) -> list[Chunk]:
    return [chunk for folder, entry, extent, storage in places for chunk in chunks(folder, entry, extent, storage=storage, mode=mode)]


def of_arrays(name: str, values: Array, offsets: Array | None = None) -> Feature:
    """A feature in memory, for trying things."""
    entry = Entry(Site(0, name, "output"), 0, str(values.dtype), values.shape[1:] if offsets is None else (0, *values.shape[1:]), name)
    shard = Shard(values, offsets, [])
    samples = len(values) if offsets is None else len(np.asarray(offsets)) - 1
    opener = partial(_in_memory, shard, samples)
    return Feature(Source(name, entry, offsets is not None, opener), opener("r"))


def _in_memory(shard: Shard, samples: int, _mode: Mode) -> list[Chunk]:
    return [Chunk(partial(_same, shard), samples)]


def _same(shard: Shard) -> Shard:
    return shard
