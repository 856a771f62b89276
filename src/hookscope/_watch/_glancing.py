"""In a step that is left out, a glance after a backward is enough as long as it shows nothing unusual."""

from __future__ import annotations

from collections.abc import Callable

from ._activations import Activations
from ._given import Given
from ._glance import Glance
from ._glimpse import Glimpse
from ._sentinel import Sentinel


class Glancing:
    """`begins` comes before a backward, `ends` after it."""

    def __init__(self, given: Given, glance: Glance, sentinel: Sentinel, activations: Activations) -> None:
        self.given, self.glance, self.sentinel, self.activations = given, glance, sentinel, activations
        self.on = False  # at the backward that is under way

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
        read = self.activations.extras.entries
        stats = [entry[3].host.tolist() for entry in read if entry[3].host is not None]
        seen = self.glance.look() if len(stats) == len(read) else None
        if seen is None or seen[0]:
            return None
        are_losses = [self.activations.table.sites[entry[0]].kind == "loss" for entry in read]
        losses = [s for s, is_loss in zip(stats, are_losses, strict=True) if is_loss]
        if len(losses) == len(stats) or not self.sentinel.calm(losses, stats, seen[1]) or not passed():
            return None
        self.sentinel.went_by(seen[1])
        glimpse = Glimpse([entry[:3] for entry in read], stats)
        self.activations.forget()
        self.given.end_by(self.glance)
        return glimpse
