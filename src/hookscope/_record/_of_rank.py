"""One rank of a run as a run of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .._core._site import Site
from ._source import Snapshot, Source


class RankSource:
    """What `rank` has recorded: its rows, its sites, its events. Of a tensor that is spread over ranks, its part alone."""

    def __init__(self, source: Source, rank: int) -> None:
        self._source = source
        self.rank = rank

    @property
    def path(self) -> Path | None:
        """The directory of the whole run."""
        return self._source.path

    def size(self) -> int:
        """Bytes of the whole run."""
        return self._source.size()

    def poll(self) -> Snapshot:
        """This rank's part of the run as it stands now."""
        found = self._source.poll()
        parts = tuple(part for part in found.parts if len(part) and int(part.rank[0]) == self.rank)
        if found.stored is not None:
            parts = (found.stored.of_rank(self.rank),)
        sites = found.sites if found.shares is None else found.shares.tables.get(self.rank, ())
        events = tuple(event for event in found.events if event.get("rank", 0) == self.rank)
        return Snapshot(replace(found.meta, rank=self.rank), tuple(sorted(map(_here, sites), key=lambda s: s.id)), events, parts)


def _here(site: Site) -> Site:
    return site if site.held is None else replace(site, numel=site.held)
