"""`Features`: what was extracted from a dataset, opened from its directory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core._errors import SelectionError
from ._dtypes import Array
from ._export import to_arrow, to_parquet
from ._feature import Feature
from ._keys import meant
from ._parts import find_parts, order_of
from ._sources import sources

if TYPE_CHECKING:
    import pyarrow as pa


class Features(Mapping[str, Feature]):
    """The features in a directory that `hookscope.extract(..., to=path)` wrote: a mapping from site to `Feature`.

    `features["layer3"]` is the output of layer3 for every sample of the dataset, read from disk as it is asked for. Keys are written
    as selections are: `layer3:input`, `block@1` for the second call of a module that was called often, or any selection that names one
    site. Unknown ones raise a SelectionError with near misses. What several ranks wrote is one view, in the order of the dataset, each
    sample once. `ids` are those of the samples, `about` what was extracted.

    Raises FeaturesError where there are no features, not all of them, or damaged ones; `partial=True` reads what is there of an
    extraction under way. Opening and reading load no torch.

    >>> import torch
    >>> import hookscope as hs
    >>> loader = torch.utils.data.DataLoader(torch.ones(10, 4), batch_size=4)
    >>> features = hs.extract(torch.nn.Sequential(torch.nn.Linear(4, 3)), loader, "0", to="feats")
    >>> features = hs.Features("feats")
    >>> len(features["0"]), features["0"].shape, features.ids[-1]
    (10, (10, 3), np.int64(9))
    """

    def __init__(self, path: str | os.PathLike[str], *, partial: bool = False) -> None:
        self.path = Path(path)
        self._parts = find_parts(self.path, partial=partial)
        self._sources = sources(self._parts)
        self._opened: dict[str, Feature] = {}
        self._entries = {name: source.entry for name, source in self._sources.items()}

    @property
    def samples(self) -> int:
        """How many samples there are."""
        order = order_of(self._parts)
        return sum(part.manifest.samples for part in self._parts) if order is None else len(order)

    @property
    def ids(self) -> Array:
        """The ids of the samples: those that were given, else their places in the dataset."""
        ids = np.concatenate([np.asarray(part.ids) for part in self._parts])
        order = order_of(self._parts)
        return ids if order is None else ids[order]

    @property
    def complete(self) -> bool:
        """Whether the extraction ran to its end."""
        return all(part.manifest.complete for part in self._parts)

    @property
    def about(self) -> Mapping[str, Any]:
        """What was extracted: the model's digest, the selection, the options."""
        return dict(self._parts[0].manifest.plan.what)

    def arrow(self, *keys: str) -> pa.Table:
        """A table of `id` and a column of lists for each of the sites, all if none is named; in memory, except maps that need no copy."""
        return to_arrow(self.ids, self._chosen(keys))

    def to_parquet(self, path: str | os.PathLike[str], *keys: str) -> None:
        """Write the same table into one Parquet file, a stretch of samples at a time."""
        to_parquet(self.ids, self._chosen(keys), path)

    def __getitem__(self, key: Any) -> Feature:
        name = self._named(key)
        if name not in self._opened:
            source = self._sources[name]
            self._opened[name] = Feature(source, source.open("r"))
        return self._opened[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def __contains__(self, key: object) -> bool:
        try:
            self._named(key)
        except SelectionError:
            return False
        return True

    def __repr__(self) -> str:
        state = "" if self.complete else ", not complete"
        head = f"Features {self.path}: {self.samples} samples, {len(self)} site{'s' if len(self) != 1 else ''}{state}"
        return "\n".join([head, *_table([self[name] for name in self])])

    def _chosen(self, keys: tuple[str, ...]) -> dict[str, Feature]:
        return {self._named(key): self[key] for key in keys or tuple(self)}

    def _named(self, key: Any) -> str:
        return meant(key, self._entries)


def _table(rows: list[Feature]) -> list[str]:
    cells = [(row.name, repr(row).split(" ", 2)[2].rsplit(" ", 1)[0], row.stored_dtype, _bytes(row.nbytes)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.4g} GB"
