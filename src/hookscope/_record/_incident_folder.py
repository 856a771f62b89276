"""The folder of an incident, written: there whole or not at all, within a number and a size."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from .._core._frame import Frame
from ._atomic import replace_file
from ._columns import SCHEMA, batch_of
from ._incident import BATCH, FACTS, FRAMES, Incident, incident_paths
from ._journal import plain
from ._segment import STREAM_OPTIONS

MOST = 8  # incidents in one run
MOST_BYTES = 2 << 30  # of all of them; what would exceed it is left out, and said to be


@dataclass(frozen=True, slots=True)
class Part:
    """A file that may be large: its name, about how many bytes it will have, and what writes it."""

    name: str
    size: int
    write: Callable[[Path], None]


def write_incident(folder: Path, incident: Incident, frames: Sequence[Frame], parts: Sequence[Part] = ()) -> Incident | None:
    """Write the incident with the last frames and its parts into `folder`, named after its step; None where there are `MOST` already."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_unfinished(folder, incident.rank)
    if len(incident_paths(folder)) >= MOST:
        return None
    making = folder / f".{incident.step}.{incident.rank}.{os.getpid()}.tmp"
    making.mkdir()
    try:
        (making / FRAMES).write_bytes(_stream(frames))
        incident = replace(incident, path=_free(folder, incident), stored=(FRAMES,))
        for part in parts:
            incident = _with(incident, part, making, folder)
        incident = replace(incident, how=(*incident.how, *_how(incident)))
        (making / FACTS).write_text(_json(incident), encoding="utf-8")
        making.rename(incident.path)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return incident


def amend_incident(incident: Incident, frames: Sequence[Frame] | None = None) -> None:
    """Write the facts of an incident anew, and the frames if given: more has been found that belongs to it."""
    if frames is not None:
        replace_file(incident.path / FRAMES, _stream(frames))
    replace_file(incident.path / FACTS, _json(incident).encode())


def remove_unfinished(folder: Path, rank: int) -> None:
    """Delete what a process of this rank that was killed within a write has left behind; other ranks may be writing now."""
    for path in folder.glob(f".*.{rank}.*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


def _with(incident: Incident, part: Part, making: Path, folder: Path) -> Incident:
    """With this part in it, or with the reason why not."""
    room = MOST_BYTES - _size(folder)
    why = f"it has about {part.size >> 20} MiB, and all incidents of a run at most {MOST_BYTES >> 20} MiB" if part.size > room else ""
    if not why:
        try:
            part.write(making / part.name)
        except Exception as problem:  # noqa: BLE001  # a full disk, an object that cannot be stored safely: the rest is worth having
            (making / part.name).unlink(missing_ok=True)
            why = f"{type(problem).__name__}: {problem}"
    return (
        replace(incident, missing={**incident.missing, part.name: why}) if why else replace(incident, stored=(*incident.stored, part.name))
    )


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # another rank has just given its folder a name
            total += path.stat().st_size if path.is_file() else 0
    return total


def _free(folder: Path, incident: Incident) -> Path:
    """A run that was resumed may come to the same step once more."""
    name = f"{incident.step}-rank-{incident.rank:05d}" if incident.rank else str(incident.step)
    path, number = folder / name, 1
    while path.exists():
        number += 1
        path = folder / f"{name}-{number}"
    return path


def _how(incident: Incident) -> tuple[str, ...]:
    run, place = incident.path.parent.parent, incident.path
    door = f"in Python, with the model built as before: hookscope.replay({str(place)!r}, model)"
    return (
        f"see it: hookscope show {run} --step {incident.step}",
        f"run the program again up to here, every operation looked at: hookscope replay {place} --script train.py",
        *([door] if BATCH in incident.stored else []),
    )


def _json(incident: Incident) -> str:
    named = {f.name: getattr(incident, f.name) for f in fields(incident) if f.name != "path"}
    named["findings"] = [{f.name: getattr(found, f.name) for f in fields(found)} for found in incident.findings]
    return json.dumps(named, indent=1, default=plain) + "\n"


def _stream(frames: Sequence[Frame]) -> bytes:
    sink: Any = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=STREAM_OPTIONS) as stream:
        if any(len(frame) for frame in frames):
            stream.write_batch(batch_of(frames))
    data: bytes = sink.getvalue().to_pybytes()
    return data
