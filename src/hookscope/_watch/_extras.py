"""Inputs and losses: tensors that no watched module has returned, read where they pass."""

from __future__ import annotations

from dataclasses import replace

import torch

from .._core._site import Site
from .._stats import Row, reduce_into
from .._taps._inventory import tensor_facts
from ._store import Store
from ._table import SiteTable

Entry = tuple[int, int, int, Row]  # site, call, seq, row


class Extras:
    """The rows read since the last `forget`; a site read again is its next call."""

    def __init__(self, table: SiteTable, store: Store, most: int) -> None:
        self.table = table
        self.store = store
        self.most = most  # calls of one site
        self.lost = 0
        self.entries: list[Entry] = []
        self._rows: dict[tuple[int, int], Row] = {}

    def read(self, site: Site, tensor: torch.Tensor, seq: int, *, call: int = 0, once: bool = False) -> None:
        """Stats of `tensor`; if `once`, a call that is there already is left alone."""
        number = self.table.add(replace(site, **tensor_facts(tensor)))
        read = [entry[1] for entry in self.entries if entry[0] == number]
        if number < 0 or (once and call in read):
            return
        call = max([call, *(earlier + 1 for earlier in read)])
        if call >= self.most:
            self.lost += 1
            return
        if (number, call) not in self._rows:
            self._rows[number, call] = self.store.row(tensor)
        row = self._rows[number, call]
        if reduce_into(row, tensor):
            self.entries.append((number, call, seq, row))

    def split(self) -> tuple[list[Entry], list[Entry]]:
        """Inputs; and what a factor on the loss is in: losses, gradients."""
        parts: tuple[list[Entry], list[Entry]] = [], []
        for entry in self.entries:
            parts[self.table.sites[entry[0]].kind != "input"].append(entry)
        return parts

    def forget(self) -> None:
        """Begin anew."""
        self.entries = []
