"""The table of sites of one run: gives each selected site its number, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .._core._site import Kind, Site

_Key = tuple[str, str, str, str, str]


class SiteTable:
    """Sites are added when their first tensor is seen, so an entry always has a shape; `grown` says that a sink has not seen all yet."""

    def __init__(self, known: Sequence[Site] = ()) -> None:
        self.keeps: Callable[[Site], bool] = lambda site: True
        self.sites: list[Site] = list(known)
        self._ids: dict[_Key, int] = {_key(site): site.id for site in known}
        self.grown = False
        self.running: list[int] = []  # sites that a later micro-batch reads with all that earlier ones have added
        self._are: dict[Kind, NDArray[np.bool_]] = {}

    def are(self, kind: Kind) -> NDArray[np.bool_]:
        """Which sites are of this kind, by their numbers."""
        known = self._are.get(kind)
        if known is None or len(known) < len(self.sites):
            self._are[kind] = known = np.array([site.kind == kind for site in self.sites], bool)
        return known

    def add(self, site: Site) -> int:
        """The number of `site`, or -1 if the selection leaves it out."""
        key = _key(site)
        found = self._ids.get(key)
        if found is None:
            found = len(self.sites) if self.keeps(site) else -1
            self._ids[key] = found
            if found >= 0:
                self.sites.append(replace(site, id=found))
                self.grown = True
                if site.label == "local":
                    self.running.append(found)
        return found


def _key(site: Site) -> _Key:
    return site.path, site.kind, site.label, site.output_path, site.model
