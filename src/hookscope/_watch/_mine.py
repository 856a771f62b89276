"""Those of an optimizer's parameters that are watched: their names are remembered, themselves only while they are used."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cached_property

import torch
from torch import nn

from ._parameters import Parameters

Find = Callable[[torch.optim.Optimizer], list[nn.Parameter]]


class Mine:
    """The names of all, `parameters` once they are asked for."""

    def __init__(self, optimizer: torch.optim.Optimizer, names: frozenset[str], find: Find) -> None:
        self.names = names
        self._optimizer, self._find = optimizer, find

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """Themselves, looked for now."""
        return self._find(self._optimizer)


class Owned:
    """`of` an optimizer; `closely` where a change of its groups that leaves their sizes as they are must not go unseen."""

    def __init__(self, find: Find, parameters: Parameters) -> None:
        self._find, self._parameters = find, parameters
        self._found: dict[int, tuple[weakref.ref[torch.optim.Optimizer], tuple[int, ...], frozenset[str]]] = {}

    def of(self, optimizer: torch.optim.Optimizer, *, closely: bool) -> Mine:
        """What of it is watched."""
        state = (self._parameters.known, *[len(group["params"]) for group in optimizer.param_groups])
        found = self._found.get(id(optimizer))
        if not closely and found is not None and found[0]() is optimizer and found[1] == state:
            return Mine(optimizer, found[2], self._find)
        mine = Mine(optimizer, frozenset(), self._find)
        mine.names = self._parameters.names(mine.parameters)
        state = (self._parameters.known, *state[1:])  # finding them may have made some known
        self._found = {key: kept for key, kept in self._found.items() if kept[0]() is not None}
        self._found[id(optimizer)] = weakref.ref(optimizer), state, mine.names
        return mine
