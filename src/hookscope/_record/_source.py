"""Where a Run reads from: a directory that may still be growing, or memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .._core._errors import RunUnreadableError
from .._core._site import Site
from ._columns import Rows, rows_of
from ._journal import JournalTail
from ._layout import Layout
from ._meta import Meta, meta_from_json
from ._ranktables import RankTables
from ._scan import Extent
from ._segment import segment_paths
from ._shares import Shares
from ._sink import Event
from ._stored import Stored
from ._tail import SegmentTail

LARGE = 128 * 2**20  # bytes of frames: some 8 million rows, or 700 MB in memory


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that was recorded up to one moment. `unread` counts bytes that form no whole batch: torn, or still being written."""

    meta: Meta
    sites: tuple[Site, ...]
    events: tuple[Event, ...]
    parts: tuple[Rows, ...]
    unread: int = 0
    shares: Shares | None = None  # None: one rank alone
    stored: Stored | None = None  # of a run too large for memory: then there are no parts


class Source(Protocol):
    """What a Run needs to know of the place that it reads."""

    @property
    def path(self) -> Path | None:
        """The directory, if it is one."""

    def poll(self) -> Snapshot:
        """The run as it stands now."""

    def size(self) -> int:
        """Bytes held."""


class DirectorySource:
    """A run's directory, read on from where the last look ended.

    Several ranks with more frames than `LARGE` at the first look are not read but left to a `Stored`; one rank alone, of which
    there is nothing to merge, is always read whole.
    """

    _tables: RankTables
    _large: bool | None
    _stored: Stored | None

    def __init__(self, path: Path) -> None:
        self.path = path
        self._layout = Layout(path)
        self._created: str | None = None
        self._forget()

    def poll(self) -> Snapshot:
        """Read what is new.

        The order matters while a run is being written: run.json before the frames, so that a run seen as closed is seen whole; the sites
        after the frames, so that no frame speaks of a site not yet seen.
        """
        try:
            return self._read()
        except RunUnreadableError:
            raise
        except OSError as problem:
            raise RunUnreadableError(f"cannot read the run at {self.path}: {problem.filename}: {problem.strerror}") from None

    def _read(self) -> Snapshot:
        meta = self._meta()
        if meta.created != self._created:  # not the run that was read before: it was overwritten
            self._forget()
            self._created = meta.created
        ranks = self._layout.ranks()
        if self._large is None:
            self._large = len(ranks) > 1 and sum(extent.bytes for extent in self._extents(ranks)) > LARGE
        if self._large:
            return self._look(meta, ranks)
        fresh = {rank: self._read_rank(rank) for rank in ranks}
        self._tables.read(ranks)
        self._parts += [self._tables.numbered(rows, rank) for rank, (rows, _) in fresh.items() if len(rows)]
        self._read_events()
        shares = Shares(dict(self._tables.tables), _groups(self._events))
        unread = sum(left for _, left in fresh.values())
        return Snapshot(meta, shares.sites, tuple(self._events), tuple(self._parts), unread, shares)

    def _look(self, meta: Meta, ranks: Sequence[int]) -> Snapshot:
        """What there is, unread."""
        extents = self._extents(ranks)
        self._tables.read(ranks)
        self._read_events()
        shares = Shares(dict(self._tables.tables), _groups(self._events))
        if self._stored is None or self._stored.extents != extents:
            self._stored = Stored(extents, self._tables, shares)
        return Snapshot(meta, shares.sites, tuple(self._events), (), 0, shares, self._stored)

    def _extents(self, ranks: Sequence[int]) -> tuple[Extent, ...]:
        files = ((rank, path) for rank in ranks for path in segment_paths(self._layout.frames(rank)))
        return tuple(Extent(rank, path, path.stat().st_size) for rank, path in files)

    def size(self) -> int:
        """Bytes of all files of the run, incidents included."""
        return sum(p.stat().st_size for p in self.path.rglob("*") if p.is_file())

    def _forget(self) -> None:
        self._tails: dict[Path, SegmentTail] = {}
        self._journals: dict[int, JournalTail] = {}
        self._parts: list[Rows] = []
        self._large = None
        self._stored = None
        self._events: list[Event] = []
        self._tables = RankTables(self._layout)

    def _meta(self) -> Meta:
        try:
            return meta_from_json(self._layout.meta.read_text(encoding="utf-8"), str(self.path))
        except (OSError, UnicodeDecodeError) as problem:
            if isinstance(problem, RunUnreadableError):
                raise
            raise RunUnreadableError(_no_run(self.path, problem)) from None

    def _read_rank(self, rank: int) -> tuple[Rows, int]:
        unread = 0
        batches = []
        for path in segment_paths(self._layout.frames(rank)):
            tail = self._tails.setdefault(path, SegmentTail(path))
            batches += tail.read()
            unread += tail.unread
        return rows_of(batches, rank), unread

    def _read_events(self) -> None:
        for rank in self._layout.journal_ranks():
            tail = self._journals.setdefault(rank, JournalTail(self._layout.journal(rank)))
            self._events += [{**event, "rank": rank} if rank else event for event in tail.read()]


def _groups(events: list[Event]) -> frozenset[tuple[int, ...]]:
    """Ranks that work on the same samples, as they have told."""
    told = (e["ranks"] for e in events if e.get("event") == "same_samples" and isinstance(e.get("ranks"), list))
    return frozenset(tuple(int(rank) for rank in ranks) for ranks in told)


def _no_run(path: Path, problem: Exception) -> str:
    """Why there is no run at that place, and where there is one."""
    if not path.exists():
        return f"no run at {path}: there is no such directory"
    if not path.is_dir():
        return f"no run at {path}: it is a file; give the directory that hookscope.watch(..., to=...) wrote"
    if (path / "run.json").exists():
        return f"cannot read the run at {path}: run.json: {getattr(problem, 'strerror', None) or problem}"
    inside = sorted(p.parent.name for p in path.glob("*/run.json"))[:3]
    hint = f": did you mean {' or '.join(repr(str(path / name)) for name in inside)}?" if inside else ""
    return f"no run at {path}: the directory holds no run.json{hint}"
