"""Whether features may be written to a directory, and what of an earlier extraction can be gone on with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._core._errors import FeaturesError, UsageError
from . import _commits, _lock, _manifest
from ._manifest import Manifest, Plan, read_manifest


def claim(folder: Path, plan: Plan, *, resume: bool, overwrite: bool) -> Manifest | None:
    """The manifest of the extraction to go on with, None if this is a new one; FeaturesError where neither may be."""
    if overwrite and resume is not True:
        raise UsageError(f"overwrite=True and resume={resume!r} contradict each other: overwrite=True alone replaces what is there")
    if folder.exists() and not folder.is_dir():
        raise FeaturesError(f"cannot write features to {folder}: a file of that name is in the way: choose another directory")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / _manifest.NAME).exists():
        _refuse_foreign(folder)
        return None
    manifest = read_manifest(folder)
    if overwrite:
        remove(folder, manifest)
        return None
    if not resume:
        state = f"{manifest.samples} samples" if manifest.complete else "an unfinished extraction"
        raise FeaturesError(
            f"{folder} already holds {state}: leave out resume=False to go on with it, or pass overwrite=True to replace it"
        )
    _compare(folder, manifest.plan, plan)
    return manifest


def _refuse_foreign(folder: Path) -> None:
    """Features are not mixed with files of others, whose names may be those of sites."""
    ours = (_commits.NAME, _lock.NAME)
    held = sorted(p.name for p in folder.iterdir() if p.name not in ours and not (p.name.startswith(".") and p.name.endswith(".tmp")))
    if held:
        shown = ", ".join(held[:3]) + (", ..." if len(held) > 3 else "")
        raise FeaturesError(
            f"cannot write features to {folder}: it holds {shown}, but no {_manifest.NAME}: "
            f"choose an empty or new directory such as {folder / 'features'}"
        )


def _compare(folder: Path, there: Plan, asked: Plan) -> None:
    """Raise where going on would mix two different extractions."""
    differing = [*_differences(_placed(there), _placed(asked)), *_differences(there.what, json.loads(json.dumps(dict(asked.what))))]
    if differing:
        raise FeaturesError(
            f"{folder} holds features of another extraction: {'; '.join(differing)}. "
            "Pass overwrite=True to replace them, or choose another directory"
        )


def _placed(plan: Plan) -> dict[str, Any]:
    return {"storage": plan.storage, "rank": plan.rank, "world_size": plan.world_size}


def _differences(there: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Of what was written down; an older version did not write all of it."""
    return [f"{name} was {value!r} and is {asked.get(name)!r}" for name, value in there.items() if value != asked.get(name)]


def remove_leftovers(folder: Path) -> None:
    """Delete what a process killed within an atomic replacement left behind."""
    for name in (_commits.NAME, _manifest.NAME):
        for path in folder.glob(f".{name}.*.tmp"):
            path.unlink(missing_ok=True)


def remove(folder: Path, manifest: Manifest) -> None:
    """Delete an extraction's own files and nothing else; the manifest goes last, so that an interrupted removal can be repeated."""
    for entry in manifest.entries:
        shutil.rmtree(folder / entry.stem, ignore_errors=True)
        for ending in (".npy", ".offsets.npy"):
            (folder / f"{entry.stem}{ending}").unlink(missing_ok=True)
    for name in ("ids.npy", "ids.jsonl", "index.npy", _commits.NAME, _manifest.NAME):
        (folder / name).unlink(missing_ok=True)
