"""What `features.json` says: what was extracted from which model, in which files, and whether it is all there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import __version__
from .._core._errors import FeaturesError
from .._record._atomic import replace_file
from ._entry import Entry, entry_from_json
from ._extent import Extent, extents_from_json

FORMAT = 1
NAME = "features.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for: `what` must be the same, entry by entry, for an extraction to be gone on with."""

    what: Mapping[str, Any]
    storage: str = "npy"
    rank: int = 0
    world_size: int = 1
    torch: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A directory of features. It holds no time and no host, so that two extractions of the same thing are equal byte for byte.

    `first_batch` is the mark of the loader's first batch. `batches` and `extents` are of a complete extraction; before, the commits tell.
    """

    plan: Plan
    entries: tuple[Entry, ...]
    first_batch: str
    complete: bool = False
    batches: int = 0
    samples: int = 0
    extents: Mapping[str, Extent] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Put it in its place; a reader sees the old one or this one."""
        replace_file(folder / NAME, (json.dumps(self._to_json(), indent=1) + "\n").encode())

    def _to_json(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "format": FORMAT,
            "hookscope": __version__,
            "torch": plan.torch,
            "what": dict(plan.what),
            "storage": plan.storage,
            "rank": plan.rank,
            "world_size": plan.world_size,
            "first_batch": self.first_batch,
            "complete": self.complete,
            "batches": self.batches,
            "samples": self.samples,
            "sites": [entry.to_json() for entry in self.entries],
            "extents": {stem: extent.to_json() for stem, extent in self.extents.items()},
        }


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a directory that has one; FeaturesError if it cannot be read."""
    path = folder / NAME
    try:
        found = json.loads(path.read_bytes())
        if int(found["format"]) <= FORMAT:
            return _manifest(found)
    except OSError as problem:
        raise FeaturesError(f"cannot read {path}: {problem.strerror or problem}") from problem
    except (ValueError, KeyError, TypeError) as problem:
        raise FeaturesError(
            f"{path} is damaged or was not written by hookscope ({problem!r}): extract again into another directory"
        ) from None
    raise FeaturesError(f"{folder} is written in format {found['format']}; this hookscope {__version__} reads formats up to {FORMAT}")


def _manifest(found: Mapping[str, Any]) -> Manifest:
    numbers = (int(found["rank"]), int(found["world_size"]))
    plan = Plan(dict(found["what"]), str(found["storage"]), *numbers, torch=str(found["torch"]))
    return Manifest(
        plan=plan,
        entries=tuple(entry_from_json(number, site) for number, site in enumerate(found["sites"])),
        first_batch=str(found["first_batch"]),
        complete=bool(found["complete"]),
        batches=int(found["batches"]),
        samples=int(found["samples"]),
        extents=extents_from_json(found["extents"]),
    )
