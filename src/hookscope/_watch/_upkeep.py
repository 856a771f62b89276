"""What happens to weights in a step and between two: settings that cannot be right, why an update went bad, who else writes to them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from .._core._frame import Frame
from .._core._site import Site
from .._stats import Marks, marks_of
from ._decay import decay_rate
from ._faults import setting_faults, why
from ._parameters import Parameters

MOST = 8  # events of a kind in one run
Event = dict[str, Any]


class Upkeep:
    """`begins` and `ends` surround each attempt; `look` at the frame of a step; each yields events."""

    def __init__(self, parameters: Parameters, plain: Callable[[Site], str]) -> None:
        self.parameters = parameters
        self.plain = plain  # the name that a site has in the run
        self._left: weakref.WeakKeyDictionary[torch.optim.Optimizer, Marks] = weakref.WeakKeyDictionary()
        self._told: set[object] = set()
        self._writes = 0

    def begins(self, optimizer: torch.optim.Optimizer, mine: Sequence[nn.Parameter]) -> Iterator[Event]:
        """Are its settings possible, and are the parameters what the last attempt left?"""
        for fault in setting_faults(optimizer, decay_rate):
            if self._is_news(key := (id(optimizer), fault["cause"])) and len(self._told) < 10 * MOST:
                self._told.add(key)
                yield {"event": "optimizer_setting", "optimizer": type(optimizer).__name__, **fault}
        yield from self._written(self._left.pop(optimizer, None), mine)

    def ends(self, optimizer: torch.optim.Optimizer, mine: Sequence[nn.Parameter]) -> None:
        """Whatever changes from now on, it was not this attempt."""
        self._left[optimizer] = marks_of(list(mine))[:, 2:]

    def _written(self, left: Marks | None, mine: Sequence[nn.Parameter]) -> Iterator[Event]:
        if left is None or len(left) != len(mine) or self._writes >= MOST:
            return
        changed = marks_of(list(mine))[:, 2:] != left
        if not changed.any():
            return
        paths = sorted({self._path(p) for p, was in zip(mine, changed.any(axis=1), strict=True) if was})
        replaced = bool(changed[:, 1].any())
        if self._is_news(key := frozenset(paths)):
            self._told.add(key)
            self._writes += 1
            how = "replaced" if replaced else "in place"
            yield {"event": "written_between_steps", "parameters": paths[:64], "count": len(paths), "how": how}

    def look(self, frame: Frame, sites: Sequence[Site], optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[Event]:
        """Where gradients are finite and what came of them is not: why."""
        bad = set(frame.site[frame.stats[:, 1:3].any(axis=1)].tolist())
        ill = {self.plain(sites[n]) for n in bad if sites[n].kind in ("param", "update")}
        if not ill or any(sites[n].kind == "param_grad" for n in bad):
            return
        for parameter in self.parameters.alive():
            path = self._path(parameter)
            optimizer = next((o for o in optimizers if any(p is parameter for g in o.param_groups for p in g["params"])), None)
            if path in ill and optimizer is not None and self._is_news(key := ("ill", path)) and len(self._told) < 10 * MOST:
                self._told.add(key)
                yield {"event": "bad_update", "parameter": path, "optimizer": type(optimizer).__name__, **why(optimizer, parameter)}

    def _path(self, parameter: nn.Parameter) -> str:
        watched = self.parameters.get(parameter)
        return "" if watched is None else self.plain(watched.site)

    def _is_news(self, key: object) -> bool:
        return key not in self._told
