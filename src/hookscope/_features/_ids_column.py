"""The ids of the samples: whole numbers in ids.npy, anything else as text in ids.jsonl, one JSON string a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from .._core._errors import FeaturesError
from .._record._atomic import append_whole
from ._batch import Ids
from ._npy import GrowingNpy

_INT64 = np.dtype("<i8")


class NumbersColumn:
    """Whole numbers, one a sample."""

    def __init__(self, path: Path) -> None:
        self.samples = 0
        self._file = GrowingNpy(path, _INT64)

    def append(self, ids: Ids) -> None:
        """Write the ids of one batch."""
        if isinstance(ids, list):
            raise FeaturesError(f"the id {ids[0]!r} is text and those before it were whole numbers: give ids of one kind")
        self._file.append(ids)
        self.samples += len(ids)

    def holds(self, samples: int) -> bool:
        """Whether at least so many are there."""
        return self._file.holds((samples,))

    def rewind(self, samples: int) -> None:
        """Keep so many."""
        self._file.cut((samples,))
        self.samples = samples

    def settle(self) -> None:
        """Let the header tell of all."""
        self._file.settle((self.samples,))

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


class TextsColumn:
    """Texts, one a sample."""

    def __init__(self, path: Path) -> None:
        self.samples = 0
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        self._size = os.fstat(self._file).st_size

    def append(self, ids: Ids) -> None:
        """Write the ids of one batch."""
        if not isinstance(ids, list):
            raise FeaturesError(f"the id {ids[0]} is a whole number and those before it were text: give ids of one kind")
        data = "".join(json.dumps(name, ensure_ascii=False) + "\n" for name in ids).encode()
        os.lseek(self._file, self._size, os.SEEK_SET)
        append_whole(self._file, data, self._size)
        self._size += len(data)
        self.samples += len(ids)

    def holds(self, samples: int) -> bool:
        """Whether at least so many are there."""
        return self._end(samples) is not None

    def rewind(self, samples: int) -> None:
        """Keep so many."""
        end = self._end(samples)
        assert end is not None
        os.ftruncate(self._file, end)
        self._size, self.samples = end, samples

    def settle(self) -> None:
        """Nothing: a line is whole when it is written."""

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _end(self, samples: int) -> int | None:
        """Where the line of the last of so many ends; None if there are fewer whole lines."""
        end = 0
        with self._path.open("rb") as file:
            for _ in range(samples):
                line = file.readline()
                if not line.endswith(b"\n"):
                    return None
                end += len(line)
        return end


def text_of(line: bytes) -> str:
    """The id that a line is."""
    return str(json.loads(line))


def text_lines(folder: Path, samples: int, at_once: int) -> Iterator[list[bytes]]:
    """The lines of a folder's texts, so many in all, in stretches."""
    with (folder / "ids.jsonl").open("rb") as file:
        lines = islice(file, samples)
        while some := list(islice(lines, at_once)):
            yield some


def read_ids(folder: Path, samples: int) -> Ids:
    """The ids of a folder, so many of them."""
    texts = folder / "ids.jsonl"
    if texts.exists():
        with texts.open(encoding="utf-8") as file:
            found = [json.loads(line) for line, _ in zip(file, range(samples), strict=False)]
    else:
        return np.load(folder / "ids.npy", mmap_mode="r")[:samples]  # type: ignore[no-any-return]  # numpy's stub says Any
    return found
