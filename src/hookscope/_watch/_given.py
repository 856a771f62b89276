"""Which parameters a backward has given gradients, and whether those were thrown away again."""

from __future__ import annotations

import weakref

import numpy as np
from torch import nn

from .._stats import Marks, marks_of
from ._glance import Glance
from ._parameters import Parameters

Ref = weakref.ref[nn.Parameter]
_NOTHING: tuple[list[Ref], Marks] = [], marks_of([])


class Given:
    """Call `begin` before a backward and `end` after it; true if that gave gradients, until `clear`."""

    def __init__(self, parameters: Parameters) -> None:
        self._watched = parameters
        self._before: tuple[list[Ref], Marks] | None = None  # None if no parameter had a gradient
        self._given = _NOTHING
        self._glance: Glance | None = None  # which knows what was given

    def begin(self) -> bool:
        """Note the gradients as they are before a backward; whether there are any."""
        parameters = self._watched.alive()
        marks = marks_of(parameters)
        self._before = [weakref.ref(p) for p in parameters], marks
        return bool(marks[:, 0].any())

    def begin_bare(self) -> None:
        """The same where no parameter has a gradient."""
        self._before = None

    def end(self) -> tuple[list[nn.Parameter], Marks]:
        """Note which of them it has changed; returns all of them, as they are now."""
        if self._before is None:
            parameters = self._watched.alive()
            refs, now = [weakref.ref(p) for p in parameters], marks_of(parameters)
            changed = np.flatnonzero(now[:, 0])
        else:
            refs, parameters, before = _alive(*self._before)
            now = marks_of(parameters)
            changed = np.flatnonzero((now[:, 0] != 0) & (now[:, :2] != before[:, :2]).any(axis=1))
        self._given, self._glance = ([refs[i] for i in changed], now[changed]), None
        return parameters, now

    def end_by(self, glance: Glance) -> None:
        """The same where `glance` has just looked, if it should be asked for."""
        self._glance = glance

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those to which the last backward gave gradients."""
        return _alive(*self._found())[1]

    def clear(self) -> None:
        """They have been used."""
        self._given, self._glance = _NOTHING, None

    def __bool__(self) -> bool:
        return bool(self._found()[0])

    def _found(self) -> tuple[list[Ref], Marks]:
        return self._given if self._glance is None else self._glance.given

    @property
    def thrown_away(self) -> bool:
        """Whether all of them are gone, and no weight was changed meanwhile. Waits for the device where they are there and all zero."""
        _, parameters, then = _alive(*self._found())
        now = marks_of(parameters)
        # Sharpness-aware minimisation uses a gradient, and drops it, within a step: it changes the weights meanwhile.
        if (now[:, 2] != then[:, 2]).any() or (now[:, :2] == then[:, :2]).all(axis=1).any():
            return False
        return bool(self) and not any(p.grad is not None and bool(p.grad.any()) for p in parameters)


def _alive(refs: list[Ref], marks: Marks) -> tuple[list[Ref], list[nn.Parameter], Marks]:
    """Those parameters that still exist."""
    parameters = [parameter for ref in refs if (parameter := ref()) is not None]
    if len(parameters) == len(refs):
        return refs, parameters, marks
    there = [i for i, ref in enumerate(refs) if ref() is not None]
    return [refs[i] for i in there], parameters, marks[there]
