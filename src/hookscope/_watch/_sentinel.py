"""What is looked at in every step, whether it is recorded or not: is the loss, is what the model returned, are the gradients as usual?"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from .._core._stats import Rows

JUMP = 4.0  # times the usual norm of all gradients together, or the first loss
USUAL = 64  # steps that say what is usual
AGAIN = 8  # steps after which it is told anew


class Sentinel:
    """Knows what is usual."""

    def __init__(self) -> None:
        self._norms: deque[float] = deque(maxlen=USUAL)
        self._usual = math.inf
        self._asked = 0
        self._first_loss: float | None = None

    def jumped(self, norm: float, losses: Rows) -> bool:
        """Whether the norm of all gradients, or the magnitude of the first loss, is far larger than usual. Asked once a step."""
        loss = abs(float(losses[0, 4])) / max(1.0, float(losses[0, 0])) if len(losses) else None
        far = norm > JUMP * self._usual
        self._norms.append(norm)
        self._asked += 1
        if self._asked % AGAIN == 0:
            self._usual = sorted(self._norms)[len(self._norms) // 2]
        if loss is not None and self._first_loss is None:
            self._first_loss = loss
        return far or (loss is not None and self._first_loss is not None and loss > JUMP * self._first_loss > 0)


def really_bad(rows: Rows) -> NDArray[np.bool_]:
    """NaN, or +Inf, or nothing but Inf; -Inf among finite values is how a mask looks."""
    bad: NDArray[np.bool_] = (rows[:, 1] > 0) | (rows[:, 7] == np.inf) | ((rows[:, 2] > 0) & (rows[:, 7] == -np.inf))
    return bad
