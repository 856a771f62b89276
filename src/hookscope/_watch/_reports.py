"""Whom the steps of a training tell what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .._core._frame import Frame
from ._tap import MicroRows


@dataclass(frozen=True, slots=True)
class Reports:
    """Whom the steps tell: of a closed frame, of rows that come late to one, of a frame that looks bad before the update, of a skipped
    step, of a folded micro-batch (also together with whether a gradient is bad), of one at which a glance was enough, and that the pending
    ones now belong to the open step.
    """

    frame: Callable[[Frame], None]
    late: Callable[[Frame], None]
    suspect: Callable[[Frame], None]
    skipped: Callable[[str], None]
    micro: Callable[[MicroRows], None]
    locate: Callable[[MicroRows, bool], None]
    passed: Callable[[], bool]  # whether a glance is indeed enough
    adopted: Callable[[], None]
