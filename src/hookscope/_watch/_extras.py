"""Inputs and losses: tensors that no watched module has returned, read where they pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from .._core._site import Site
from .._stats import Row, reduce_into
from .._taps._inventory import tensor_facts
from .._taps._leaves import call_leaves, leaves
from ._slot import Slot
from ._store import Store
from ._table import SiteTable
from ._tap import Tap, memory_of

_LOSS = Site(-1, "loss", "loss")
Entry = tuple[int, int, int, Row]  # site, call, seq, row


class Extras:
    """`entries` are the rows read since somebody has emptied them; a site read again is its next call. A site is known by being the same
    object.
    """

    def __init__(self, table: SiteTable, store: Store, most: int) -> None:
        self.table = table
        self.store = store
        self.most = most  # calls of one site
        self.lost = 0
        self.entries: list[Entry] = []
        self._rows: dict[tuple[int, int], Row] = {}
        self._numbers: dict[tuple[int, str], tuple[int, Site]] = {}

    def read(self, site: Site, path: str, tensor: torch.Tensor, seq: int, *, call: int = 0) -> None:
        """Stats of `tensor`, found at `path` in what passes at `site`."""
        number = self._number(site, path, tensor)
        read = [entry[1] for entry in self.entries if entry[0] == number]
        if number >= 0:
            self._read(number, tensor, seq, max([call, *(earlier + 1 for earlier in read)]))

    def read_once(self, site: Site, path: str, tensor: torch.Tensor, seq: int, *, call: int) -> None:
        """The same, where that call has not been read already."""
        number = self._number(site, path, tensor)
        if number >= 0 and all(entry[:2] != (number, call) for entry in self.entries):
            self._read(number, tensor, seq, call)

    def read_call(self, site: Site, call: int, seq: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Stats of what a module is called with."""
        for path, tensor in call_leaves(args, kwargs):
            self.read(site, path, tensor, seq, call=call)

    def read_returned(self, site: Site, seq: int, output: Any) -> None:
        """Stats of what it returns."""
        for path, tensor in leaves(output):
            self.read(site, path, tensor, seq)

    def read_loss(self, root: torch.Tensor, seq: int) -> None:
        """Stats of what a backward starts from."""
        self.read(_LOSS, "", root, seq)

    def blame(self, tap: Tap, slot: Slot, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor) -> None:
        """The output is not finite: were the inputs? They cannot be told where the module wrote its output over them."""
        place = memory_of(output)
        for path, tensor in call_leaves(args, kwargs):
            if tensor.is_floating_point() and (memory := memory_of(tensor)) is not None and memory != place:
                self.read_once(tap.input_site, path, tensor, slot.seq, call=slot.call)

    def _read(self, number: int, tensor: torch.Tensor, seq: int, call: int) -> None:
        if call >= self.most:
            self.lost += 1
            return
        if (number, call) not in self._rows:
            self._rows[number, call] = self.store.row(tensor)
        row = self._rows[number, call]
        if reduce_into(row, tensor):
            self.entries.append((number, call, seq, row))

    def _number(self, site: Site, path: str, tensor: torch.Tensor) -> int:
        found = self._numbers.get((id(site), path))
        if found is None:
            number = self.table.add(replace(site, output_path=path, **tensor_facts(tensor)))
            self._numbers[id(site), path] = found = number, site  # held, so that its id stays its own
        return found[0]

    def split(self) -> tuple[list[Entry], list[Entry]]:
        """What is given and returned; and what a factor on the loss is in: losses, gradients."""
        parts: tuple[list[Entry], list[Entry]] = [], []
        for entry in self.entries:
            parts[self.table.sites[entry[0]].kind not in ("input", "output")].append(entry)
        return parts
