"""Parameters that are read as they were the last time: their sites, and what the kernel is told of them, are found once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .._core._site import Kind
from .._core._stats import Rows
from .._stats import Repeated

Found = TypeVar("Found")
MOST = 16  # of them: a few optimizers, and each kind


@dataclass(frozen=True, slots=True)
class Known:
    """`numbers` of sites, and the `order` of the parameters among all that are watched."""

    numbers: list[int]
    order: NDArray[np.intp]
    repeated: Repeated


class Prepared:
    """Valid until `forget`: when a parameter becomes known, or another sample of one is kept."""

    def __init__(self) -> None:
        self._known: dict[tuple[Kind, tuple[int, ...]], Known] = {}
        self._found: dict[tuple[object, tuple[int, ...]], Any] = {}

    def read(self, kind: Kind, wanted: Sequence[nn.Parameter]) -> tuple[Known, Rows] | None:
        """What `learn` was told of these, and their stats now; None if it was told nothing, or it holds no more."""
        known = self._known.get((kind, tuple(map(id, wanted))))
        if known is None:
            return None
        rows = known.repeated.read(list(wanted), change=kind == "update")
        return None if rows is None else (known, rows)

    def learn(
        self,
        kind: Kind,
        wanted: Sequence[nn.Parameter],
        places: tuple[list[int], list[int]],
        samples: Sequence[tuple[tuple[int, ...], torch.Tensor]],
    ) -> None:
        """All of them were read by their jobs, with these samples; `places` are numbers and order."""
        if len(self._known) >= MOST:
            self._known.clear()
        jobs, kept = zip(*samples, strict=True)
        self._known[kind, tuple(map(id, wanted))] = Known(places[0], np.array(places[1], np.intp), Repeated(jobs, kept))

    def once(self, find: Callable[[Sequence[nn.Parameter]], Found], of: Sequence[nn.Parameter]) -> Found:
        """What `find` says of these, asked the first time."""
        key = find, tuple(map(id, of))
        found: Found | None = self._found.get(key)
        if found is None:
            if len(self._found) >= MOST:
                self._found.clear()
            self._found[key] = found = find(of)
        return found

    def forget(self) -> None:
        """Begin anew."""
        self._known.clear()
        self._found.clear()
