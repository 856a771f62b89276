"""In a step that is left out, a glance after a backward is enough as long as it shows nothing unusual."""

from __future__ import annotations

from collections.abc import Callable

from ._activations import Activations
from ._extras import Entry
from ._given import Given
from ._glance import Glance
from ._glimpse import Glimpse
from ._sentinel import Sentinel


class Glancing:
    """`begins` comes before a backward, `ends` after it."""

    def __init__(self, given: Given, glance: Glance, sentinel: Sentinel, activations: Activations) -> None:
        self.given, self.glance, self.sentinel, self.activations = given, glance, sentinel, activations
        self.on = False  # at the backward that is under way
        self.seen: list[Entry] = []  # what was read besides gradients when a glance was enough last

    def begins(self, *, first: bool, wanted: bool) -> None:
        """`first`: after an attempt. What a later backward gives can only be told if what was there before it is known."""
        self.on = wanted and first and self.glance.bare.idle and self.activations.waiting and self.glance.is_of_use
        if self.on:
            self.given.begin_bare()
            self.glance.bare.entered(False)
        else:
            self.glance.forget()
            there = self.given.begin()
            if first:
                self.glance.bare.entered(there)

    def ends(self, passed: Callable[[], bool]) -> Glimpse | None:
        """What was read, if there is no more to see; `passed` is asked, at the end, whether that is so for others, too."""
        sites, read = self.activations.table.sites, self.activations.extras.entries
        places, stats, losses = [], [], []
        for number, call, seq, row in read:
            if row.host is None:
                return None
            stats.append(row.host.tolist())
            places.append((number, call, seq))
            if sites[number].kind == "loss":
                losses.append(stats[-1])
        seen = self.glance.look()
        if seen is None or seen[0] or len(losses) == len(stats):
            return None
        if not self.sentinel.calm(losses, stats, seen[1]) or not passed():
            return None
        self.sentinel.went_by(seen[1])
        self.seen = read
        self.activations.forget()
        self.given.end_by(self.glance)
        return Glimpse(places, stats)
