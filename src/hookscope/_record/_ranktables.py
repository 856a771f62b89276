"""The tables of sites of all ranks under one numbering: each rank numbers its sites as they come, and they need not come alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .._core._site import Site
from ._columns import Rows
from ._layout import Layout
from ._sitetable import decode_sites

_Key = tuple[str, ...]


class RankTables:
    """Reads the tables again where they have changed. A site keeps the number that it once got: that of rank 0 where it is free."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._seen: dict[Path, tuple[int, int]] = {}
        self._numbers: dict[_Key, int] = {}
        self._taken: set[int] = set()
        self._maps: dict[int, NDArray[np.int32]] = {}
        self._latest: tuple[bytes, tuple[Site, ...], NDArray[np.int32]] = b"", (), np.zeros(0, np.int32)
        self.tables: dict[int, tuple[Site, ...]] = {}

    def read(self, ranks: Sequence[int]) -> None:
        """Look at the tables of these ranks; one without a table of its own has that of rank 0."""
        for rank in sorted({0, *ranks}):
            path = self._layout.sites_of(rank)
            try:
                found = path.stat()
            except FileNotFoundError:
                self._share_first(rank)
                continue
            if self._seen.get(path) != (state := (found.st_mtime_ns, found.st_ino)):
                self._seen[path] = state
                self._take(rank, path.read_bytes(), path)

    def numbered(self, rows: Rows, rank: int) -> Rows:
        """Rows of a rank, their sites as they are called here."""
        sites = self.renumbered(rows.site, rank)
        return rows if sites is rows.site else replace(rows, site=sites)

    def renumbered(self, sites: NDArray[np.int32], rank: int) -> NDArray[np.int32]:
        """A rank's numbers of sites, as they are called here."""
        mapping = self._maps.get(rank)
        return sites if mapping is None or not len(sites) or self._is_plain(mapping) else mapping[sites]

    def own_number(self, site: int, rank: int) -> int:
        """What a rank calls a site; -1 if it has none such."""
        mapping = self._maps.get(rank)
        found = np.flatnonzero(mapping == site) if mapping is not None else [site]
        return int(found[0]) if len(found) else -1

    def _is_plain(self, mapping: NDArray[np.int32]) -> bool:
        return bool((mapping == np.arange(len(mapping))).all())

    def _share_first(self, rank: int) -> None:
        if rank and 0 in self.tables:
            self.tables[rank], self._maps[rank] = self.tables[0], self._maps[0]

    def _take(self, rank: int, data: bytes, path: Path) -> None:
        """Ranks that do the same have tables that are equal to the byte: one is taken for all of them."""
        if data != self._latest[0]:
            self._latest = data, *self._placed(decode_sites(data, str(path)))
        _, self.tables[rank], self._maps[rank] = self._latest

    def _placed(self, sites: tuple[Site, ...]) -> tuple[tuple[Site, ...], NDArray[np.int32]]:
        mapping = np.arange(1 + max((site.id for site in sites), default=-1), dtype=np.int32)
        for site in sites:
            mapping[site.id] = self._number(site)
        return tuple(replace(site, id=int(mapping[site.id])) if mapping[site.id] != site.id else site for site in sites), mapping

    def _number(self, site: Site) -> int:
        key = (site.path, site.kind, site.label, site.output_path, site.model)
        number = self._numbers.get(key)
        if number is None:
            number = site.id if site.id not in self._taken else max(self._taken) + 1
            self._numbers[key] = number
            self._taken.add(number)
        return number
