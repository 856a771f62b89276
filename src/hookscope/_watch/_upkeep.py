"""What happens to weights in a step and between two: settings that cannot be right, why an update went bad, who else writes to them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from .._core._frame import Frame
from .._core._site import Site
from .._stats import Marks, marks_of
from ._decay import decay_rate
from ._faults import setting_faults, why
from ._glance import Glance
from ._mine import Mine
from ._parameters import Parameters

MOST = 8  # events of a kind in one run
Event = dict[str, Any]


class Upkeep:
    """`begins` and `ends` surround each attempt; `look` at the frame of a step; each yields events.

    `closely` says whether the step is recorded: where it is not, what the `glance` after a backward has seen must do.
    """

    def __init__(self, parameters: Parameters, plain: Callable[[Site], str], closely: Callable[[], bool], glance: Glance) -> None:
        self.parameters = parameters
        self.closely, self.glance = closely, glance
        self.plain = plain  # the name that a site has in the run
        self._left: weakref.WeakKeyDictionary[torch.optim.Optimizer, Marks] = weakref.WeakKeyDictionary()
        self._told: set[object] = set()
        self._writes = 0

    def begins(self, optimizer: torch.optim.Optimizer, mine: Mine) -> Iterator[Event]:
        """Are its settings possible, and are the parameters what the last attempt left?"""
        for fault in setting_faults(optimizer, decay_rate):
            if self._is_news(key := (id(optimizer), fault["cause"])) and len(self._told) < 10 * MOST:
                self._told.add(key)
                yield {"event": "optimizer_setting", "optimizer": type(optimizer).__name__, **fault}
        written = list(self._written(self._left.pop(optimizer, None), mine)) if self._writes < MOST else []
        paths = sorted({self._path(parameter) for parameter, _ in written})
        replaced = any(moved for _, moved in written)
        if paths and self._is_news(frozenset(paths)):
            self._told.add(frozenset(paths))
            self._writes += 1
            how = "replaced" if replaced else "in place"
            yield {"event": "written_between_steps", "parameters": paths[:64], "count": len(paths), "how": how}

    def ends(self, optimizer: torch.optim.Optimizer, mine: Mine) -> None:
        """Whatever changes from now on, it was not this attempt."""
        if self.closely():
            self._left[optimizer] = marks_of(mine.parameters)[:, 2:]

    def _written(self, left: Marks | None, mine: Mine) -> Iterator[tuple[nn.Parameter, bool]]:
        """Each parameter that was, and whether it has got other memory."""
        if left is None:
            yield from self.glance.written() if self.closely() else ()
        elif len(parameters := mine.parameters) == len(left):
            changed = marks_of(parameters)[:, 2:] != left
            yield from ((parameters[i], bool(changed[i, 1])) for i in np.flatnonzero(changed.any(axis=1)))

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
