"""What is looked at in every step, whether it is recorded or not: is the loss, is what the model returned, are the gradients as usual?"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .._core._stats import Rows
from ._early import Early
from ._tap import MicroRows

Stats = Sequence[float]  # a row

JUMP = 4.0  # times the usual norm of all gradients together, or the first loss
FAINT = 1e-15  # a norm below which its squares may have been too small to add up
USUAL = 64  # steps that say what is usual
AGAIN = 8  # steps after which it is told anew
STUBBORN = 5  # overflows in a row that no scaler needs to find its factor once it has begun


class Sentinel:
    """Asked after each backward."""

    def __init__(self) -> None:
        self._norms: deque[float] = deque(maxlen=USUAL)
        self._far = math.inf  # a norm beyond which it has jumped
        self._asked = self._overflows = 0
        self._first_loss: float | None = None

    def alarmed(self, micro: MicroRows, losses: NDArray[np.bool_], early: Early, scale: float) -> bool:
        """Whether something is not finite or far larger than usual. `losses` tells the sites that are; `scale` is the factor on the loss.

        Gradients that overflow now and then under such a factor are how a gradient scaler finds the right one.
        """
        self._overflows = self._overflows + 1 if early.bad else 0
        bad = early.bad and (scale == 1.0 or self._overflows >= STUBBORN)
        loss = micro.stats[losses[micro.site]][:1].tolist()
        norm = math.sqrt(early.squares) / scale if len(early.rows) else None
        jumped = self._jumped(norm, loss[0] if loss else None)
        self._goes_on(norm)
        return bool(bad or jumped or really_bad(micro.stats).any())

    def calm(self, losses: Sequence[Stats], all_stats: Sequence[Stats], squares: float) -> bool:
        """After a glance at which no gradient was bad: whether nothing calls for an alarm. `went_by` is to follow, or else `alarmed`."""
        for stats in all_stats:
            if (stats[1] or stats[2]) and _is_really_bad(stats):
                return False
        if self._first_loss is None or not losses:
            return not self._jumped(math.sqrt(squares), losses[0] if losses else None)
        far = math.sqrt(squares) > self._far
        return not (far or abs(losses[0][4]) / (losses[0][0] or 1.0) > JUMP * self._first_loss > 0)

    def went_by(self, squares: float) -> None:
        """And that was all."""
        self._overflows = 0
        self._goes_on(math.sqrt(squares))

    def _jumped(self, norm: float | None, loss: Stats | None) -> bool:
        far = norm is not None and norm > self._far
        if loss is None:
            return far
        mean = abs(loss[4]) / (loss[0] or 1.0)
        if self._first_loss is None:
            self._first_loss = mean
        return far or mean > JUMP * self._first_loss > 0

    def _goes_on(self, norm: float | None) -> None:
        if norm is not None:
            self._norms.append(norm)
            self._asked += 1
            if self._asked % AGAIN == 0:
                self._far = max(FAINT, JUMP * sorted(self._norms)[len(self._norms) // 2])


def _is_really_bad(stats: Stats) -> bool:
    return stats[1] > 0 or stats[7] == math.inf or (stats[2] > 0 and stats[7] == -math.inf)


def really_bad(rows: Rows) -> NDArray[np.bool_]:
    """NaN, or +Inf, or nothing but Inf; -Inf among finite values is how a mask looks."""
    bad: NDArray[np.bool_] = (rows[:, 1] > 0) | (rows[:, 7] == np.inf) | ((rows[:, 2] > 0) & (rows[:, 7] == -np.inf))
    return bad
