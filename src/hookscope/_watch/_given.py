"""Which parameters a backward has given gradients, and whether those were thrown away again."""

from __future__ import annotations

import weakref

from torch import nn

from ._parameters import Parameters

_Mark = tuple[int, int]  # which tensor a gradient is, in which version


class Given:
    """Call `begin` before a backward and `end` after it; true if that gave gradients, until `clear`."""

    def __init__(self, parameters: Parameters) -> None:
        self._watched = parameters
        self._before: dict[int, _Mark | None] = {}
        self._given: list[tuple[weakref.ref[nn.Parameter], _Mark, int]] = []

    def begin(self) -> None:
        """Note the gradients as they are before a backward."""
        self._before = {id(p): _mark(p) for p in self._watched.alive()}

    def end(self) -> None:
        """Note which of them it has changed."""
        now = [(p, _mark(p)) for p in self._watched.alive()]
        self._given = [(weakref.ref(p), mark, p._version) for p, mark in now if mark is not None and mark != self._before.get(id(p))]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those to which the last backward gave gradients."""
        return [parameter for ref, _, _ in self._given if (parameter := ref()) is not None]

    def clear(self) -> None:
        """They have been used."""
        self._given = []

    def __bool__(self) -> bool:
        return bool(self._given)

    @property
    def thrown_away(self) -> bool:
        """Whether all of them are gone, and no weight was changed meanwhile. Waits for the device where they are there and all zero."""
        return bool(self._given) and all(_is_gone(*given) for given in self._given)


def _mark(parameter: nn.Parameter) -> _Mark | None:
    grad = parameter.grad
    return None if grad is None else (id(grad), grad._version)


def _is_gone(ref: weakref.ref[nn.Parameter], mark: _Mark, version: int) -> bool:
    parameter = ref()
    if parameter is None or parameter.grad is None:
        return parameter is None or parameter._version == version  # sharpness-aware minimisation uses one, and drops it, within a step
    return parameter._version == version and _mark(parameter) != mark and not bool(parameter.grad.any())
