"""What an optimizer does, told to the parts of a session; the usual step that is left out goes by without a detour."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ._mine import Owned
from ._routine import Routine

if TYPE_CHECKING:
    from ._session import Session


class Attempts:
    """`begins`, `evaluated`, `ends` and `skipped` are events of the process."""

    def __init__(self, routine: Routine) -> None:
        self.routine = routine
        self.owned: Owned | None = None

    def begins(self, session: Session, optimizer: torch.optim.Optimizer, *, has_closure: bool) -> None:
        """Parameters are still what the forward used."""
        if self._can_pass(session) and self.routine.begins(optimizer, has_closure=has_closure):
            if session.locator.region.seated:
                session.safety.run("origin", session.locator.pause)
            return
        self.catch_up(session)
        self._tell_begin(session, optimizer, has_closure=has_closure)
        session.second.weigh(optimizer)
        if session.hears_closures:
            session.guard.begins(optimizer, has_closure=has_closure)

    def evaluated(self, session: Session, optimizer: torch.optim.Optimizer) -> None:
        """The closure that its step was given has been called once more."""
        self.catch_up(session)
        self._tell(session, lambda *_: session.steps.evaluated(), optimizer, None)
        session.guard.evaluated(optimizer)

    def ends(self, session: Session, optimizer: torch.optim.Optimizer, *, has_closure: bool) -> None:
        """The optimizer has done what it does."""
        if self.routine.ends(optimizer):
            session.safety.run("steps", session.steps.goes_by)
            self._over(session)
            session.shortcut.learn(optimizer)
            return
        if has_closure and session.hears_closures:
            session.guard.undo(optimizer)
        session.second.weigh(optimizer)
        self._tell(session, session.steps.attempt_ends, optimizer, session.upkeep.ends, has_closure=has_closure)
        if session.owner.here:
            session.guard.ends()
            self._over(session)
            session.shortcut.over()
        session.second.look()

    def skipped(self, session: Session, optimizer: torch.optim.Optimizer) -> None:
        """A GradScaler did not let the optimizer step."""
        self.catch_up(session)
        self._tell(session, session.steps.attempt_skipped, optimizer, None)
        session.locator.holding.let_go()
        session.second.look()

    def catch_up(self, session: Session) -> None:
        """Tell of an attempt that was taken for one that goes by; that is over when it ends, and something else has come before."""
        session.shortcut.close()
        optimizer, self.routine.under_way = self.routine.under_way, None
        if optimizer is not None:
            self._tell_begin(session, optimizer, has_closure=False)

    def _can_pass(self, session: Session) -> bool:
        """Whether nobody has to look at an attempt before it is known to be over."""
        watched = session.second.armed is not None or session.guard.nonfinite.watches
        return not watched and session.owner.here and not session.safety.elsewhere

    def _over(self, session: Session) -> None:
        session.locator.over()
        if session.locator.due:
            session.safety.run("origin", session.locator.begin_early)
        session.locator.holding.let_go()

    def _tell_begin(self, session: Session, optimizer: torch.optim.Optimizer, *, has_closure: bool) -> None:
        self._tell(session, session.steps.attempt_begins, optimizer, session.origins.begun, has_closure=has_closure)

    def _tell(
        self,
        session: Session,
        tell: Callable[..., None],
        optimizer: torch.optim.Optimizer,
        then: Callable[..., None] | None,
        **facts: Any,
    ) -> None:
        safety, owner = session.safety, session.owner
        closely = session.steps.recorded or facts.get("has_closure", True)
        if self.owned is None:
            self.owned = Owned(session.models.mine, session.parameters)
        owned = self.owned

        def told() -> None:
            mine = owned.of(optimizer, closely=closely)
            if mine.names:
                owner.steps()
                session.incidents.meet(optimizer)
                tell(optimizer, mine, **facts)
                if then is not None:
                    safety.within("origin", then, optimizer, mine)

        def event() -> None:
            if owner.here:
                safety.within("origin", session.locator.pause)
            if not owner.muted:
                safety.within("steps", told)

        safety.run("events", event)
        session.deliver()
