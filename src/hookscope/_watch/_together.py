"""What all ranks have seen, known to each of them: frames merged over ranks one recorded step later, and whether any rank's step is bad."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from .._core._errors import HookscopeWarning
from .._core._frame import Frame
from .._core._site import PARAM_KINDS, Site
from .._core._stats import EMPTY
from ._notice import warn
from ._slots import NUMBERS, Slots
from ._wire import Wire, check_ranks, next_number

if TYPE_CHECKING:
    from ._session import Session

UNLIKE = 8  # steps, at the beginning, whose sites differ between ranks, after which it is given up
_HEAD = 4  # step and print of the sites, each with its negative: equal on all ranks where the maxima say so


class Alone:
    """One rank, or ranks that do not speak to each other: what it sees itself is all there is."""

    active = False

    def frames(self, frame: Frame, _sites: Sequence[Site]) -> list[Frame]:
        """The frame itself."""
        return [frame]

    def last(self) -> list[Frame]:
        """Nothing is left to be judged."""
        return []

    def agree(self, bad: bool) -> bool:
        """Whether this step is bad."""
        return bad

    def close(self) -> None:
        """Nothing was open."""


class Together:
    """`frames` takes each closed frame and gives those to be judged; `agree` is asked before an optimizer's step.

    After whatever goes wrong it is silent: each rank judges its own frames then, as without it, and `told` has been called with the reason.
    """

    def __init__(self, sites: int, scheduled: Callable[[int], bool], told: Callable[[str], None]) -> None:
        check_ranks()
        number = next_number()
        self._frames, self._bad = Wire(number, "frames"), Wire(number, "bad")
        self._scheduled, self._told = scheduled, told
        self._slots = self._next = Slots((), self._frames.world)  # those in use, and those that ranks may agree on
        self._rows = self._largest_of_all(2 * sites + 64)
        self._asked = self._unlike = self._known = 0
        self._waiting = False
        self._mine: Frame | None = None  # what was sent last

    def _largest_of_all(self, rows: int) -> int:
        size = torch.tensor([float(rows)], dtype=torch.float64)
        self._bad.post(None, size)
        self._bad.take(patience=60.0)
        return int(size[0])

    @property
    def active(self) -> bool:
        """Whether ranks still speak to each other."""
        return not (self._frames.broken or self._bad.broken)

    def frames(self, frame: Frame, sites: Sequence[Site]) -> list[Frame]:
        """The frame of all ranks at the recorded step before this one; of a rank on its own, its frame itself."""
        if not self.active:
            return [frame]
        if not self._scheduled(frame.step):
            return []
        mine, before = self._mine, self._taken()
        self._post(frame, sites)
        return [*before, *(one for one in (None if before else mine, frame) if one is not None)] if self._gone() else before

    def last(self) -> list[Frame]:
        """When all is over: the frame of the last step."""
        return self._taken() if self.active else []

    def agree(self, bad: bool) -> bool:
        """Whether the step of any rank is bad; waits for the others, which come to the same step, but not for long."""
        if not self.active:
            return bad
        self._asked += 1
        message = torch.tensor([self._asked, -self._asked, float(bad)], dtype=torch.float64)
        self._bad.post(None, message)
        found = self._bad.take()
        if found is not None and found[0][0] != -found[0][1]:
            self._bad.give_up("ranks take different steps")
        return bad if self._gone() or found is None else bool(found[0][2] > 0)

    def close(self) -> None:
        """No more is sent."""
        self._frames.give_up("closed")
        self._bad.give_up("closed")

    def _gone(self) -> bool:
        if why := self._frames.broken or self._bad.broken:
            self.close()
            self._told(why)
            warn(f"hookscope: reduce='step' is given up and the training goes on, each rank judged by itself: {why}", HookscopeWarning)
        return bool(why)

    def _taken(self) -> list[Frame]:
        if not self._waiting:
            return []
        self._waiting = False
        found = self._frames.take()
        if found is None:
            return []
        total, largest = (tensor.numpy() for tensor in found)
        if largest[0] != -largest[1]:
            self._frames.give_up("ranks record different steps")
            return []
        mine, slots = self._mine, self._slots
        if largest[2] == -largest[3]:
            self._unlike, self._slots = 0, self._next
        elif not len(slots):
            self._unlike += 1
            if self._unlike >= UNLIKE:
                self._frames.give_up("ranks see different sites")
        if not len(slots):
            return [] if mine is None else [mine]
        return [slots.frame(int(largest[0]), total.reshape(-1, NUMBERS), largest[_HEAD:].reshape(-1, 2))]

    def _post(self, frame: Frame, sites: Sequence[Site]) -> None:
        if self._known != len(sites):
            self._known, self._next = len(sites), Slots(sites, self._frames.world)
        if len(self._next) > self._rows:
            self._frames.give_up(f"there are more than {self._rows} sites")
            return
        stats = np.tile(np.array(EMPTY), (self._rows, 1))
        self._slots.fill(stats, frame)
        head = float(frame.step), float(self._next.print)
        largest = np.concatenate([[head[0], -head[0], head[1], -head[1]], np.stack([stats[:, 7], -stats[:, 6]], axis=1).ravel()])
        self._frames.post(torch.from_numpy(stats[:, :NUMBERS].ravel()), torch.from_numpy(largest))
        self._waiting, self._mine = True, frame


def speak(session: Session, sites: int) -> None:
    """Let this rank and the others judge what all of them see; there will be about so many `sites`."""
    together = Together(sites, session.pace.scheduled, lambda why: session.safety.event("reduce_given_up", why=why))
    session.online.together, session.guard.agree = together, together.agree


def sites_of(models: Iterable[nn.Module]) -> int:
    """How many sites these models have at most, in the usual case."""
    return sum(3 * len(list(model.modules())) + 2 * len(PARAM_KINDS) * len(list(model.parameters())) for model in models)
