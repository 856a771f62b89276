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

JUMP = 4.0  # times the usual norm of all gradients together, or what the loss seldom exceeds
FAINT = 1e-15  # a norm below which its squares may have been too small to add up
USUAL = 64  # steps that say what is usual
AGAIN = 8  # steps after which it is told anew
SELDOM = 15 / 16  # of the losses lie below what they seldom exceed: those that come near 0 or change their sign have no usual size
STUBBORN = 5  # overflows in a row that no scaler needs to find its factor once it has begun

# What an alarm is given for: that values are large must not hide that others are not finite, nor an odd output a bad gradient.
LARGE, OUTPUT, LOSS, GRADIENT = "large", "output", "loss", "gradient"


class Recent:
    """Sizes of the latest steps: `far` is beyond what is usual, as told by the size that a `share` of them do not exceed."""

    def __init__(self, share: float, least: float) -> None:
        self.far = math.inf
        self._share, self._least = share, least
        self._sizes: deque[float] = deque(maxlen=USUAL)
        self._added = 0

    def add(self, size: float) -> None:
        """And another."""
        self._sizes.append(size)
        self._added += 1
        if self._added % AGAIN == 0:
            usual = sorted(self._sizes)[int(len(self._sizes) * self._share)]
            self.far = max(self._least, JUMP * usual) or math.inf  # of what is always 0 nothing can be told


class Sentinel:
    """Asked after each backward."""

    def __init__(self) -> None:
        self._norms, self._sizes = Recent(0.5, FAINT), Recent(SELDOM, 0.0)
        self._overflows = 0

    def alarmed(self, micro: MicroRows, losses: NDArray[np.bool_], early: Early, scale: float) -> set[str]:
        """What is not finite or far larger than usual. `losses` tells the sites that are; `scale` is the factor on the loss.

        Gradients that overflow now and then under such a factor are how a gradient scaler finds the right one.
        """
        self._overflows = self._overflows + 1 if early.bad else 0
        is_loss, bad = losses[micro.site], really_bad(micro.stats)
        loss = micro.stats[is_loss][:1].tolist()
        norm = math.sqrt(early.squares) / scale if len(early.rows) else None
        causes = {
            LARGE: self._jumped(norm, loss),
            OUTPUT: bool((bad & ~is_loss).any()),
            LOSS: bool((bad & is_loss).any()),
            GRADIENT: bool(early.bad) and (scale == 1.0 or self._overflows >= STUBBORN),
        }
        self._goes_on(norm, loss)
        return {cause for cause, holds in causes.items() if holds}

    def calm(self, losses: Sequence[Stats], others: Sequence[Stats], squares: float) -> bool:
        """After a glance at which no gradient was bad: whether nothing calls for an alarm. `went_by` is to follow, or else `alarmed`."""
        for stats in losses:
            if (stats[1] or stats[2]) and _is_really_bad(stats):
                return False
        for stats in others:
            if (stats[1] or stats[2]) and _is_really_bad(stats):
                return False
        return not self._jumped(math.sqrt(squares), losses)

    def causes(self, losses: Sequence[Stats], others: Sequence[Stats], squares: float) -> set[str]:
        """What calls for an alarm where it is not calm."""
        causes = {LARGE} if self._jumped(math.sqrt(squares), losses) else set()
        causes |= {LOSS for stats in losses if _is_really_bad(stats)}
        return causes | {OUTPUT for stats in others if _is_really_bad(stats)}

    def went_by(self, losses: Sequence[Stats], squares: float) -> None:
        """And that was all."""
        self._overflows = 0
        self._goes_on(math.sqrt(squares), losses)

    def _jumped(self, norm: float | None, losses: Sequence[Stats]) -> bool:
        return (norm is not None and norm > self._norms.far) or bool(losses and _size(losses[0]) > self._sizes.far)

    def _goes_on(self, norm: float | None, losses: Sequence[Stats]) -> None:
        if norm is not None:
            self._norms.add(norm)
        if losses and not (losses[0][1] or losses[0][2]):
            self._sizes.add(_size(losses[0]))


def _size(loss: Stats) -> float:
    """Of its mean."""
    return abs(loss[4]) / (loss[0] or 1.0)


def _is_really_bad(stats: Stats) -> bool:
    return stats[1] > 0 or stats[7] == math.inf or (stats[2] > 0 and stats[7] == -math.inf)


def really_bad(rows: Rows) -> NDArray[np.bool_]:
    """NaN, or +Inf, or nothing but Inf; -Inf among finite values is how a mask looks."""
    bad: NDArray[np.bool_] = (rows[:, 1] > 0) | (rows[:, 7] == np.inf) | ((rows[:, 2] > 0) & (rows[:, 7] == -np.inf))
    return bad
