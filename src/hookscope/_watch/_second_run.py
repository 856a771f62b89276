"""A second run of a program, armed at a step: from then on every operation is looked at while it happens, between steps, too."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .._origin._facts import badness
from .._origin._live import LiveTrace
from ._armed import Armed, Stopped

if TYPE_CHECKING:
    from ._session import Session


class SecondRun:
    """What a session does besides, if `armed`: a loss and gradients are followed up by its locator, weights here."""

    def __init__(self, armed: Armed | None, session: Session) -> None:
        self.armed = armed
        self._session = weakref.ref(session)
        self._ended = False

    def look(self) -> None:
        """Where another step may be under way: begin to look at operations, or stop where that was asked for."""
        if self.armed is None or self._ended or (session := self._session()) is None or session.closed or not session.owner.here:
            return
        step = session.steps.clock.under_way
        if self.armed.stop and (session.origins.named or step > self.armed.until):
            self._ended = True
            session.close("finished")
            raise Stopped(0)
        if step >= self.armed.step and session.locator.live is None:
            session.locator.live = LiveTrace(session.models.names)
            session.locator.live.begin()

    def weigh(self, optimizer: torch.optim.Optimizer) -> None:
        """An attempt begins, and somebody may have written to weights or gradients; or it ends, and the weights are new."""
        session = None if self.armed is None else self._session()
        if session is None or session.locator.live is None or session.origins.named or not session.owner.here:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        with _disable_current_modes(), torch.no_grad():
            bad = [t for p in parameters for t in (p, p.grad) if t is not None and badness(t)]
        if bad and (verdict := session.locator.live.origin(bad)) is not None:
            session.origins.found([verdict])
            session.origins.name()
