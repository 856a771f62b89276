"""Where things lie in a run's directory, and whether a new run may lie there."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from .._core._errors import RunError, RunExistsError, UsageError
from ._meta import Meta

_RANK = re.compile(r"rank-\d{5}")
_RANKS_FILE = re.compile(r"events-\d{5}\.jsonl|\.?sites-\d{5}\.arrow.*")


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one run. Every rank has its own frames, journal and table of sites; the rest belongs to rank 0."""

    root: Path

    @property
    def meta(self) -> Path:
        """Who, where, when; what makes the directory a run."""
        return self.root / "run.json"

    @property
    def sites(self) -> Path:
        """The table of sites."""
        return self.root / "sites.arrow"

    @property
    def incidents(self) -> Path:
        """What the flight recorder kept."""
        return self.root / "incidents"

    def sites_of(self, rank: int) -> Path:
        """The table of sites of one rank, which numbers them as they come."""
        return self.root / f"sites-{rank:05d}.arrow" if rank else self.sites

    def frames(self, rank: int) -> Path:
        """The segments of one rank."""
        return self.root / "frames" / f"rank-{rank:05d}"

    def journal(self, rank: int) -> Path:
        """The events of one rank."""
        return self.root / (f"events-{rank:05d}.jsonl" if rank else "events.jsonl")

    def journal_ranks(self) -> list[int]:
        """The ranks that have a journal."""
        others = (p.stem[7:] for p in self.root.glob("events-*.jsonl"))
        return [0, *sorted(int(number) for number in others if number.isdigit())]

    def ranks(self) -> list[int]:
        """The ranks that have a folder."""
        return sorted(int(p.name[5:]) for p in (self.root / "frames").glob("rank-*") if p.name[5:].isdigit())

    def is_run(self) -> bool:
        """Whether there is a run.json of ours."""
        try:
            found = json.loads(self.meta.read_bytes())
        except (OSError, ValueError):
            return False
        return isinstance(found, dict) and "format" in found and "hookscope" in found


def claim(layout: Layout, meta: Meta, *, overwrite: bool, resume: bool) -> bool:
    """Make the directory ready for a writer; True if there is an earlier run to resume.

    Rank 0 decides for all; another rank looks at its own files only, since rank 0 may have come first.
    """
    if overwrite and resume:
        raise UsageError("overwrite=True and resume=True contradict each other: choose one")
    try:
        exists = _exists(layout, meta.rank)
        if exists and not (overwrite or resume):
            raise RunExistsError(f"a run is already in {layout.root}: pass resume=True to continue it, or overwrite=True to replace it")
        if not exists and meta.rank == 0:
            _refuse_foreign(layout, overwrite=overwrite)
        if exists and overwrite:
            _remove(layout, meta)
        layout.root.mkdir(parents=True, exist_ok=True)
    except RunError:
        raise
    except OSError as problem:
        raise unwritable(layout.root, problem) from problem
    return exists and resume


def unwritable(root: Path, problem: OSError) -> RunError:
    """The error of a directory that the system does not let us write to, with the system's reason."""
    return RunError(f"cannot write a run to {root}: {problem.strerror or problem}: choose a directory that can be written")


def _exists(layout: Layout, rank: int) -> bool:
    if layout.root.exists() and not layout.root.is_dir():
        raise RunError(f"cannot write a run to {layout.root}: a file of that name is in the way: choose another directory")
    return layout.is_run() if rank == 0 else any(layout.frames(rank).glob("*.arrows"))


def _refuse_foreign(layout: Layout, *, overwrite: bool) -> None:
    """Nothing that is not a run is ever replaced, nor mixed with a run's files."""
    theirs = {p.name for p in (*_leftovers(layout), *_of_other_ranks(layout))}  # a rank may have come before rank 0
    held = sorted({p.name for p in layout.root.iterdir()} - theirs) if layout.root.exists() else []
    ours = [name for name in held if name in ("run.json", "sites.arrow", "events.jsonl", "incidents")]
    shown = ", ".join(held[:3]) + (", ..." if len(held) > 3 else "")
    if overwrite and held:
        raise RunError(
            f"refusing to overwrite {layout.root}: it holds {shown}, but no run.json of hookscope, so it is not a run: "
            f"choose an empty or new directory such as {layout.root / 'run'}"
        )
    if ours:
        raise RunError(
            f"cannot write a run to {layout.root}: it holds {', '.join(ours)}, but no run.json of hookscope: "
            f"choose an empty or new directory such as {layout.root / 'run'}"
        )


def _of_other_ranks(layout: Layout) -> list[Path]:
    frames = layout.root / "frames"
    only_ranks = frames.is_dir() and all(_RANK.fullmatch(p.name) for p in frames.iterdir())
    files = [p for p in layout.root.iterdir() if _RANKS_FILE.fullmatch(p.name)] if layout.root.exists() else []
    return [frames, *files] if only_ranks else []


def _leftovers(layout: Layout) -> list[Path]:
    """Files that a process killed within an atomic replacement left behind."""
    return [p for name in (layout.meta.name, layout.sites.name) for p in layout.root.glob(f".{name}.*.tmp")]


def _remove(layout: Layout, meta: Meta) -> None:
    """Delete a run's own files and nothing else; run.json goes last, so that an interrupted removal can be repeated.

    Each rank removes its own files, since rank 0 may come after others have begun; those of ranks that are no more fall to rank 0.
    """
    gone = [rank for rank in layout.ranks() if rank >= meta.world_size] if meta.rank == 0 else []
    for rank in (meta.rank, *gone):
        shutil.rmtree(layout.frames(rank), ignore_errors=True)
        layout.journal(rank).unlink(missing_ok=True)
        layout.sites_of(rank).unlink(missing_ok=True)
    if meta.rank == 0:
        for path in _leftovers(layout):
            path.unlink(missing_ok=True)
        shutil.rmtree(layout.incidents, ignore_errors=True)
        layout.sites.unlink(missing_ok=True)
        layout.meta.unlink(missing_ok=True)
