"""What is looked at in every step, whether it is recorded or not: is the loss, is what the model returned, are the gradients as usual?"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from .._core._stats import Rows
from ._early import Early
from ._tap import MicroRows

JUMP = 4.0  # times the usual norm of all gradients together, or the first loss
USUAL = 64  # steps that say what is usual
AGAIN = 8  # steps after which it is told anew
STUBBORN = 5  # overflows in a row that no scaler needs to find its factor once it has begun


class Sentinel:
    """Asked after each backward."""

    def __init__(self) -> None:
        self._norms: deque[float] = deque(maxlen=USUAL)
        self._usual = math.inf
        self._asked = self._overflows = 0
        self._first_loss: float | None = None

    def alarmed(self, micro: MicroRows, losses: NDArray[np.bool_], early: Early, scale: float) -> bool:
        """Whether something is not finite or far larger than usual. `losses` tells the sites that are; `scale` is the factor on the loss.

        Gradients that overflow now and then under such a factor are how a gradient scaler finds the right one.
        """
        self._overflows = self._overflows + 1 if early.bad else 0
        bad = early.bad and (scale == 1.0 or self._overflows >= STUBBORN)
        jumped = self._jumped(math.sqrt(early.squares) / scale if len(early.rows) else None, micro.stats[losses[micro.site]])
        return bool(bad or jumped or really_bad(micro.stats).any())

    def _jumped(self, norm: float | None, losses: Rows) -> bool:
        far = norm is not None and norm > JUMP * self._usual
        if norm is not None:
            self._norms.append(norm)
            self._asked += 1
            if self._asked % AGAIN == 0:
                self._usual = sorted(self._norms)[len(self._norms) // 2]
        if not len(losses):
            return far
        loss = abs(float(losses[0, 4])) / max(1.0, float(losses[0, 0]))
        if self._first_loss is None:
            self._first_loss = loss
        return far or loss > JUMP * self._first_loss > 0


def really_bad(rows: Rows) -> NDArray[np.bool_]:
    """NaN, or +Inf, or nothing but Inf; -Inf among finite values is how a mask looks."""
    bad: NDArray[np.bool_] = (rows[:, 1] > 0) | (rows[:, 7] == np.inf) | ((rows[:, 2] > 0) & (rows[:, 7] == -np.inf))
    return bad
