"""All gradients at a glance: whether one is bad, how large they are together, and what became of parameters since the last one."""

from __future__ import annotations

import weakref

import numpy as np
from torch import nn

from .._stats import Marks, Place, glance, place_for_marks
from ._habit import Habit
from ._parameters import Parameters

REST = 64  # backwards without a look after one at which a gradient could not be read


class Glance:
    """`look` after a backward of a step that is left out, where `idle` says that no gradient is usually there before it."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._refs: list[weakref.ref[nn.Parameter]] = []
        self._known = -1
        self._marks: list[Place] = []  # of the latest looks, the latest first
        self._rest = 0
        self.bare = Habit()  # told whether there were gradients before a backward

    @property
    def is_of_use(self) -> bool:
        """Whether gradients are likely such as can be read so; asked once a backward."""
        self._rest = max(0, self._rest - 1)
        return not self._rest

    def look(self) -> tuple[float, float] | None:
        """How many elements are NaN or Inf, and the sum of squares of all others; None if that cannot be told so."""
        parameters = self._parameters
        if parameters.foreign:
            return None
        if self._known != parameters.known:
            self._refs, self._known = parameters.references(), parameters.known
            self._marks.clear()
        place = self._marks.pop() if len(self._marks) > 2 else place_for_marks(len(self._refs))
        self._marks.insert(0, place)
        seen = glance(self._refs, place)
        if seen is None:
            self._known = -1  # a parameter is gone
        elif not seen[2]:
            return seen[:2]
        else:
            self._rest = REST
        self.forget()
        return None

    def forget(self) -> None:
        """Somebody has looked more closely, and knows more."""
        self._marks.clear()

    @property
    def given(self) -> tuple[list[weakref.ref[nn.Parameter]], Marks]:
        """At the latest look, those that had a gradient."""
        marks = self._marks[0].marks
        there = np.flatnonzero(marks[:, 0])
        return [self._refs[i] for i in there], marks[there]

    def written(self) -> list[tuple[nn.Parameter, bool]]:
        """Parameters that were written to more often before the latest look than before the one before; whether they got other memory."""
        if len(self._marks) < 3:
            return []
        now, before, earlier = (place.marks for place in self._marks)
        replaced = now[:, 3] != before[:, 3]
        more = (now - before)[:, 2] > (before - earlier)[:, 2]
        found = [(self._refs[i](), bool(replaced[i])) for i in np.flatnonzero(more | replaced)]
        return [(parameter, moved) for parameter, moved in found if parameter is not None]
