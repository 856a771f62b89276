"""What the model returns while it is evaluated: merged over all batches, as `output/eval`, apart from the training."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from .._core._site import Site
from .._stats import Row, reduce_into
from .._taps._inventory import tensor_facts
from .._taps._leaves import leaves
from ._store import Store
from ._table import SiteTable


class Evaluation:
    """Holds one merged row a site between two `take`s."""

    def __init__(self, table: SiteTable, store: Store) -> None:
        self.table = table
        self.store = store
        self._places: dict[tuple[str, str, str], tuple[int, Row, Row]] = {}  # site, the row of one call, the merged row
        self._merged: dict[int, Row] = {}
        self._last: tuple[weakref.ref[torch.Tensor], int | None, Row] | None = None

    def saw(self, site: Site, output: Any) -> None:
        """A module has returned, and no gradient will follow."""
        for path, tensor in leaves(output):
            number, row, merged = self._place(site, path, tensor)
            if number < 0:
                continue
            version = None if tensor.is_inference() else tensor._version
            last = self._last
            if last is not None and version is not None and last[0]() is tensor and last[1] == version:
                row = last[2]  # a container that returns what its last child did
            elif reduce_into(row, tensor):
                self._last = (weakref.ref(tensor), version, row)
            else:
                continue
            self._merge(number, merged, row)

    def adopt(self, rows: Iterable[tuple[int, Row]]) -> None:
        """Take over outputs read as if for training, of a forward that turns out to have been an evaluation."""
        for number, row in rows:
            site = self.table.sites[number]
            place = self._place(replace(site, output_path=""), site.output_path, row.view[0])
            if place[0] >= 0:
                self._merge(place[0], place[2], row)

    def take(self) -> tuple[list[int], list[Row]]:
        """The sites and merged rows since the last `take`; read them at once, they will be used again."""
        merged, self._merged, self._last = self._merged, {}, None
        return list(merged), list(merged.values())

    def __bool__(self) -> bool:
        return bool(self._merged)

    def _merge(self, number: int, merged: Row, row: Row) -> None:
        if number in self._merged:
            self.store.merge(merged, row)
        else:
            merged.view.copy_(row.view)
            self._merged[number] = merged

    def _place(self, site: Site, path: str, tensor: torch.Tensor) -> tuple[int, Row, Row]:
        key = site.model, site.path, path
        if key not in self._places:
            facts = {} if site.shape is not None else tensor_facts(tensor)
            number = self.table.add(replace(site, label="eval", output_path=path, **facts))
            self._places[key] = number, self.store.row(tensor), self.store.row(tensor)
        return self._places[key]
