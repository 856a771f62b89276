"""Ids that name two samples, found in memory that does not grow with their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from .._core._errors import UsageError
from ._batch import Ids
from ._dtypes import Array
from ._ids_column import read_ids, text_lines, text_of

RECENT = 1 << 16
AT_ONCE = 1 << 22  # numbers that are sorted at a time: 100 MB
_ODD = np.uint64(0x9E3779B97F4A7C15)  # times it, another number for each, whose upper half looks random


class Recent:
    """The last ids, at least `RECENT` of them: what repeats soon is told while little has run."""

    def __init__(self) -> None:
        self._new: dict[Any, int] = {}
        self._old: dict[Any, int] = {}
        self._count = 0

    def add(self, ids: Ids) -> None:
        """The ids of the next samples. Raises `UsageError` where one was there."""
        for name in ids if isinstance(ids, list) else ids.tolist():
            before = self._new.get(name, self._old.get(name))
            if before is not None:
                raise _twice(name, before, self._count)
            self._new[name] = self._count
            self._count += 1
            if len(self._new) == RECENT:
                self._old, self._new = self._new, {}

    def skip(self, samples: int) -> None:
        """Count samples without looking at their ids."""
        self._count += samples


def refuse_repeats(folder: Path, samples: int) -> None:
    """Raise `UsageError` if two of the samples in a folder have the same id; as many readings of the ids as they are times `AT_ONCE`."""
    shares = max(1, -(-samples // AT_ONCE))
    for share in range(shares):
        keys, places = _share(folder, samples, share, shares)
        order = np.argsort(keys, kind="stable")
        for at in np.flatnonzero(keys[order[1:]] == keys[order[:-1]]):
            one, other = int(places[order[at]]), int(places[order[at + 1]])
            names = _names(folder, samples, (one, other))
            if names[0] == names[1]:
                raise _twice(names[0], one, other)


def _twice(name: Any, one: int, other: int) -> UsageError:
    return UsageError(f"ids name {name!r} more than once, samples {one} and {other}: give each sample an id of its own")


def _share(folder: Path, samples: int, share: int, shares: int) -> tuple[Array, Array]:
    """Those keys that belong to this share, and where they are."""
    keys, places, start = [], [], 0
    for some in _keys(folder, samples):
        mine = np.flatnonzero((some >> np.uint64(32)) % np.uint64(shares) == share)
        keys.append(some[mine])
        places.append(mine + start)
        start += len(some)
    return np.concatenate(keys), np.concatenate(places)


def _keys(folder: Path, samples: int) -> Iterator[Array]:
    """A number of 64 bits for each id, another one for each number and, nearly always, for each text."""
    if (folder / "ids.jsonl").exists():
        for lines in text_lines(folder, samples, RECENT):
            yield np.array([int.from_bytes(blake2b(line, digest_size=8).digest(), "little") for line in lines], np.uint64)
        return
    ids = read_ids(folder, samples)
    for start in range(0, max(samples, 1), AT_ONCE):
        yield np.asarray(ids[start : start + AT_ONCE]).astype(np.uint64) * _ODD


def _names(folder: Path, samples: int, places: Sequence[int]) -> list[Any]:
    if not (folder / "ids.jsonl").exists():
        return [int(read_ids(folder, samples)[place]) for place in places]
    found: dict[int, bytes] = {}
    for number, lines in enumerate(text_lines(folder, samples, RECENT)):
        found |= {place: lines[place - number * RECENT] for place in places if place // RECENT == number}
    return [text_of(found[place]) for place in places]
