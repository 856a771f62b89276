"""Which sites the slots in compiled graphs belong to, and their rows at the end of a micro-batch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .._core._site import Kind
from .._core._stats import Rows
from .._stats._cells import width_of
from ._compiled_hook import Place
from ._compiled_op import Toll
from ._compiled_order import in_order, post_order
from ._compiled_rows import Block
from ._store import unscaled
from ._table import SiteTable
from ._tap import MicroRows, Tap

PARTS = 8  # tensors of one structured output that have slots
KINDS: tuple[Kind, Kind] = ("output", "output_grad")
_NUMBER = re.compile(r"\d+")
_Found = tuple[NDArray[np.int32], Rows]  # sites, stats


class Held:
    """A block, and of each place in it `each` pairs of slots, one after the other: the first is for number `first` of its tensors."""

    def __init__(self, places: Sequence[Place], each: int, device: torch.device) -> None:
        self.places = places
        self.each = each
        self.block = Block(len(places) * each * 2, device, width_of(device))
        self.sites: dict[int, int] = {}

    def tensors(self, i: int) -> list[torch.Tensor]:
        """Those of the place of this number."""
        return [slot.tensor for slot in self.block.slots[2 * self.each * i : 2 * self.each * (i + 1)]]


class Traced:
    """Knows all hooked modules, and has memory once one of them is traced."""

    def __init__(self, table: SiteTable) -> None:
        self.table = table
        self.beyond: set[Tap] = set()  # which return more tensors than there are slots, or on another device
        self.on = True
        self.places: list[Place] = []
        self._held: list[Held] = []
        self._paths: dict[tuple[Any, int], str] = {}
        self._differentiable: set[Any] = set()
        self._with_gradient: set[Tap] = set()
        self._ranks: dict[tuple[str, str], int] = {}
        self._toll = Toll.spent
        Toll.errors.clear()  # those of a watch that is over

    def gate(self, on: bool) -> bool:
        """Let graphs read from now on, or not: they are those that do, or the others. Returns `on`."""
        if on != self.on:
            self.on = on
            for place in self.places:
                place.on = on
        return on

    # -- while a graph is traced ----------------------------------------------------------------------------------------------------

    def meets_whole(self, place: Place, tensor: torch.Tensor) -> bool:
        """A module is traced that returns a tensor, which `tensor` stands for. See to it that it has slots, and all other modules with it:
        an equal one that shares its graph is not traced. Returns whether it has.
        """
        if fresh := [each for each in self.places if not each.whole]:
            self._hold(held := Held(fresh, 1, tensor.device))
            for i, each in enumerate(fresh):
                each.whole = held.tensors(i)
        return self._meets(place, place.whole, tensor)

    def meets_part(self, place: Place, tensor: torch.Tensor, path: str, number: int) -> bool:
        """The same for the tensor of this number in a structured output."""
        if fresh := [each for each in self.places if not each.parts]:
            self._hold(held := Held(fresh, PARTS, tensor.device))
            for i, each in enumerate(fresh):
                each.parts = held.tensors(i)
        for key in (place.tap, _kin(place.tap)):
            self._paths.setdefault((key, number), path)
        return self._meets(place, place.parts[2 * number :], tensor)

    def _hold(self, held: Held) -> None:
        for place in held.places:
            place.reads, place.taps = (self.table.keeps(replace(place.tap.site, kind=kind)) for kind in KINDS)
        self._held.append(held)
        self._ranks = post_order([(place.tap.site.model, place.tap.site.path) for place in self.places])

    def _meets(self, place: Place, slots: list[torch.Tensor], tensor: torch.Tensor) -> bool:
        if not slots or slots[0].device != tensor.device:
            self.beyond.add(place.tap)
            return False
        if place.taps and tensor.requires_grad and tensor._is_view() and not place.linear:  # once written to, it has no hook
            self._differentiable |= {place.tap, _kin(place.tap)}
        return True

    # -- while it runs --------------------------------------------------------------------------------------------------------------

    def joined(self, micro: MicroRows, scale: float) -> MicroRows:
        """`micro` and what graphs have written since the last time, in the order of the modules."""
        found = [self._taken(held) for held in self._held]
        if not any(len(sites) for sites, _ in found):
            return micro
        sites, stats = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        gradients = self.table.are("output_grad")[sites]
        stats[gradients] = unscaled(stats[gradients], scale)
        ranks = [self._rank(site) for site in (*micro.site.tolist(), *sites.tolist())]
        return MicroRows(
            np.concatenate([micro.site, sites]),
            np.concatenate([micro.call, [np.count_nonzero(micro.site == site) for site in sites]]).astype(np.int32),
            in_order(micro.seq, np.array(ranks)),
            np.concatenate([micro.stats, stats]),
        )

    def forget(self) -> None:
        """Drop what was written since the last time."""
        for held in self._held:
            held.block.empty(slice(None))

    def forget_gradients(self) -> None:
        """A backward begins: what came before it is of `torch.autograd.grad`, and no gradient of this one."""
        for held in self._held:
            held.block.empty(slice(1, None, 2))

    def spent(self, fail: Callable[[Exception], None]) -> int:
        """Nanoseconds since the last time it was asked. `fail` is told of what has gone wrong in a graph meanwhile."""
        spent, self._toll = Toll.spent - self._toll, Toll.spent
        while Toll.errors:
            fail(Toll.errors.pop())
        return spent

    @property
    def untapped(self) -> set[Tap]:
        """Whose output has been read, and its gradient never, though it could have one."""
        kin = (place.tap for place in self.places if place.tap in self._differentiable or _kin(place.tap) in self._differentiable)
        return {tap for tap in kin if tap.fired and tap not in self._with_gradient}

    def _taken(self, held: Held) -> _Found:
        written, rows = held.block.take()
        sites = np.array([self._site(held, slot) for slot in written.tolist()], np.int32)
        return sites[sites >= 0], rows[sites >= 0]

    def _site(self, held: Held, slot: int) -> int:
        if slot not in held.sites:
            pair, side = divmod(slot, 2)
            tap, facts = held.places[pair // held.each].tap, held.block.slots[slot].facts or {}
            path = self._path(tap, pair % held.each) if held.each > 1 else ""
            held.sites[slot] = self.table.add(replace(tap.site, kind=KINDS[side], output_path=path, **facts))
            tap.fired = True
            if side:
                self._with_gradient.add(tap)
        return held.sites[slot]

    def _path(self, tap: Tap, number: int) -> str:
        """As it was traced, or as an equal module was, whose graph it shares."""
        known = (self._paths.get((key, number)) for key in (tap, _kin(tap)))
        return next((path for path in known if path is not None), f"[{number}]")

    def _rank(self, site: int) -> float:
        found = self.table.sites[site]
        if found.kind == "loss":
            return math.inf
        return self._ranks.get((found.model, found.path), -1) if found.kind in KINDS else -1


def _kin(tap: Tap) -> tuple[str, str, tuple[str, ...]]:
    return tap.site.model, _NUMBER.sub("*", tap.site.path), tap.site.bases
