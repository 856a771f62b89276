"""The commits of an extraction under way: each line says how much of every file is whole, after which batch."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._record._atomic import append_whole, replace_file
from ._extent import Extent, extents_from_json

NAME = "commits.jsonl"
_LONG = 1 << 20
_NEWEST = 100


@dataclass(frozen=True, slots=True)
class Commit:
    """After so many batches and samples, with the mark of all batches up to there."""

    batches: int
    samples: int
    mark: str
    extents: Mapping[str, Extent]

    def line(self) -> bytes:
        """One line of JSON."""
        extents = {stem: extent.to_json() for stem, extent in self.extents.items()}
        named = {"batches": self.batches, "samples": self.samples, "mark": self.mark, "extents": extents}
        return (json.dumps(named) + "\n").encode()


def read_commits(folder: Path) -> list[Commit]:
    """The commits that are whole, oldest first; a line torn by a kill ends them."""
    commits: list[Commit] = []
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        for line in (folder / NAME).read_bytes().split(b"\n")[:-1]:
            commits.append(_commit(json.loads(line)))  # noqa: PERF401  # what stands before a torn line is kept
    return commits


def _commit(found: Mapping[str, Any]) -> Commit:
    return Commit(int(found["batches"]), int(found["samples"]), str(found["mark"]), extents_from_json(found["extents"]))


class Journal:
    """Appends commits; a journal that grows long is thinned to the newest, from which an extraction goes on."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._commits: list[Commit] = []
        self._size = 0

    def keep(self, commits: list[Commit]) -> None:
        """Let it hold these and nothing else, torn lines included."""
        data = b"".join(commit.line() for commit in commits)
        replace_file(self._path, data)
        self._commits, self._size = list(commits), len(data)

    def append(self, commit: Commit) -> None:
        """Write one more."""
        if self._size > _LONG:
            self.keep([*self._commits[-_NEWEST:], commit])
            return
        line = commit.line()
        with self._path.open("r+b" if self._size else "wb") as file:
            file.seek(self._size)
            append_whole(file.fileno(), line, self._size)
        self._size += len(line)
        self._commits.append(commit)

    def remove(self) -> None:
        """Delete the file: the extraction is complete."""
        self._path.unlink(missing_ok=True)
