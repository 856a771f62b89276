"""In a step that is left out, a glance after a backward is enough as long as it shows nothing unusual."""

from __future__ import annotations

from collections.abc import Callable

from ._activations import Activations
from ._afar import Afar, FarGlimpse
from ._early import Early
from ._extras import Entry
from ._given import Given
from ._glance import Glance
from ._glimpse import Glimpse
from ._sentinel import GRADIENT, Sentinel
from ._tap import MicroRows


class Glancing:
    """`begins` comes before a backward, `ends` after it."""

    def __init__(self, given: Given, glance: Glance, activations: Activations) -> None:
        self.given, self.glance, self.activations = given, glance, activations
        self.sentinel, self.afar = Sentinel(), Afar(activations.store)
        self.on = False  # at the backward that is under way
        self._late: set[str] = set()
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

    def alarmed(self, micro: MicroRows, early: Early, scale: float) -> set[str]:
        """What was read where a glance was not enough, or is known only now, and calls for an alarm."""
        late = self._is_late()
        return self.sentinel.alarmed(micro, self.activations.table.are("loss"), early, scale) | late

    def _is_late(self) -> set[str]:
        """What was not as usual in earlier steps that were looked at from afar, as is known only now."""
        late, self._late = self._late, set()
        return late.union(*(self._causes(glimpse) for glimpse in self.afar.arrived()))

    def _causes(self, glimpse: FarGlimpse) -> set[str]:
        bad, squares = glimpse.of_gradients
        causes = self.sentinel.causes(glimpse.losses, glimpse.others, squares)
        self.sentinel.went_by(glimpse.losses, squares)
        return causes | {GRADIENT} if bad else causes

    def ends(self, passed: Callable[[], bool]) -> Glimpse | FarGlimpse | None:
        """What was read, if there is no more to see; `passed` is asked, at the end, whether that is so for others, too."""
        sites, read = self.activations.table.sites, self.activations.extras.entries
        places, stats = [], []
        losses: list[list[float]] = []
        others: list[list[float]] = []
        for number, call, seq, row in read:
            if row.host is None:
                return self._ends_afar(passed) if self.afar.on else None
            stats.append(row.host.tolist())
            places.append((number, call, seq))
            (losses if sites[number].kind == "loss" else others).append(stats[-1])
        seen = self.glance.look()
        if seen is None or seen[0] or not others:
            return None
        if not self.sentinel.calm(losses, others, seen[1]) or not passed():
            return None
        self.sentinel.went_by(losses, seen[1])
        self.seen = read
        self.activations.forget()
        self.given.end_by(self.glance)
        return Glimpse(places, stats)

    def _ends_afar(self, passed: Callable[[], bool]) -> FarGlimpse | None:
        read = self.activations.extras.entries
        gradients = self.afar.gradients(read, self.given.end()[0])
        are_losses = [self.activations.table.sites[entry[0]].kind == "loss" for entry in read]
        self._late = self._is_late()
        if self._late or gradients is None or all(are_losses) or not passed():
            return None
        glimpse = self.afar.send(read, are_losses, gradients)
        if glimpse is not None:
            self.activations.forget()
        return glimpse
