"""A script runs a second time to name the line that the first run could not: from before a known step on, all operations are watched."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .._origin._facts import badness
from .._origin._tracer import Tracer
from .._origin._walk import origin, writer_of
from .._taps._events import Backward, subscribe
from ._session import Session


class Enough(SystemExit):
    """Ends the script: what it was run again for is known, or has not shown."""


class SecondRun:
    """`found` is given the verdict as an event; `steps` are the first step to look at, and the last."""

    hears_closures = True

    def __init__(self, session: Session, steps: tuple[int, int], found: Callable[[dict[str, Any]], None]) -> None:
        self.first, self.last = steps
        self.found = found
        self._session = weakref.ref(session)
        self._tracer = Tracer(_Names(session.models.names))
        self._armed = False
        self._undo = subscribe(self)
        self._arm(0)

    def backward_begins(self, backward: Backward) -> None:
        """The loss is there."""
        self._look(backward.roots)

    def backward_ends(self, failed: bool) -> None:
        """Gradients are."""
        if (session := self._session()) is not None and not failed:
            self._look(p.grad for p in session.parameters.alive() if p.grad is not None)

    def evaluated(self, optimizer: torch.optim.Optimizer) -> None:
        """So they are after a closure."""

    def attempt_begins(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        """Gradients as they are used, and weights that somebody may have written to."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._look([*parameters, *(p.grad for p in parameters if p.grad is not None)])

    def attempt_ends(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        """Weights are new."""
        self._look(p for group in optimizer.param_groups for p in group["params"])
        self._next()

    def attempt_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """A GradScaler left the step out."""
        self._next()

    def _next(self) -> None:
        """The step that comes may be the one."""
        if (session := self._session()) is not None:
            step = session.steps.clock.step  # of the session that is told after us
            self._arm(step + 1)
            if step > self.last:
                self._stop()

    def _arm(self, step: int) -> None:
        if not self._armed and step >= self.first:
            self._armed = True
            self._tracer.__enter__()

    def _look(self, tensors: Iterable[torch.Tensor]) -> None:
        if not self._armed:
            return
        with _disable_current_modes(), torch.no_grad():
            bad = [tensor for tensor in tensors if badness(tensor)]
        if bad and (session := self._session()) is not None:
            verdict = origin(self._tracer.trace, bad) or writer_of(self._tracer.trace, bad)
            if verdict is not None:
                self.found({"event": "origin", "step": session.steps.clock.step, **verdict.as_event(), "outside": verdict.module is None})
            self._stop()

    def _stop(self) -> None:
        self._undo()
        self._tracer.__exit__(None, None, None)
        raise Enough(0)


class _Names(dict[int, str]):
    """The paths of modules by id, asked for again when one is not known yet."""

    def __init__(self, ask: Callable[[], dict[int, str]]) -> None:
        super().__init__()
        self._ask = ask

    def get(self, key: int, default: Any = None) -> Any:
        """As of a dict."""
        if key not in self:
            self.update(self._ask())
        return super().get(key, default)
