"""Reductions over all ranks in a process group of our own, which wait for nobody longer than a moment and never fail the training.

All messages of a wire have one size: gloo ends the process where two ranks give it different ones.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from .._core._errors import AttachError, UsageError

OPENING_S = 60.0  # for all ranks to come to their watch
PATIENCE_S = 5.0  # for a message of ranks that have all but sent it
_PAUSE_S = 0.0005
_numbers = itertools.count()


class Wire:
    """`post` sends, `take` gives what has come of it, or None once `broken`: a rank has gone, or did not send in time.

    A process group that is registered with torch would number those that the training makes later; this one is known to us alone.
    """

    def __init__(self, number: int, place: str) -> None:
        store = distributed.distributed_c10d._get_default_store()
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        prefix = distributed.distributed_c10d.PrefixStore(f"hookscope/{number}/{place}", store)
        try:
            self._group: Any = distributed.ProcessGroupGloo(prefix, self.rank, self.world, timedelta(seconds=OPENING_S))
        except RuntimeError as problem:
            raise AttachError(
                f"reduce='step' needs a watch on each of the {self.world} ranks: not all came to theirs within {OPENING_S:.0f} s"
            ) from problem
        self.broken = ""
        self._sent: list[tuple[Any, torch.Tensor]] = []

    def post(self, total: torch.Tensor | None, largest: torch.Tensor) -> None:
        """Have the sums and the maxima over ranks made of these, in place."""
        for tensor, operation in ((total, distributed.ReduceOp.SUM), (largest, distributed.ReduceOp.MAX)):
            if tensor is not None and not self.broken:
                options = distributed.AllreduceOptions()
                options.reduceOp = operation  # type: ignore[assignment]  # what its stub says of it is too narrow
                try:
                    self._sent.append((self._group.allreduce([tensor], options), tensor))
                except RuntimeError as problem:
                    self.give_up(str(problem))

    def take(self, patience: float = PATIENCE_S) -> list[torch.Tensor] | None:
        """What was posted last, reduced; ranks that have not sent theirs are waited for at most so many seconds."""
        until = time.perf_counter() + patience
        while self._pending():
            if time.perf_counter() >= until:
                self.give_up(f"another rank did not come to this step within {patience:g} s")
                return None
            time.sleep(_PAUSE_S)
        sent, self._sent = self._sent, []
        try:
            for work, _ in sent:
                work.wait()  # it is over: this only tells whether it failed
        except RuntimeError:
            self.give_up("another rank has gone")
        return None if self.broken or not sent else [tensor for _, tensor in sent]

    def give_up(self, why: str) -> None:
        """Send no more: the threads of the group end here, unless they wait for messages that may never come."""
        self.broken = self.broken or why
        if self._pending():
            _leave(self._group)
            _leave(self._sent)
        self._group = None  # first, since its end waits for its threads to let go of what was sent; and with it the store goes
        self._sent = []

    def _pending(self) -> bool:
        return not all(work.is_completed() for work, _ in self._sent)


def _leave(kept: Any) -> None:
    """Leave it to the end of the process.

    The end of a group would wait for its messages. And a thread of gloo that is the last to hold one asks for Python's lock to free its
    tensor: where another rank's end fails the message while Python itself is ending, that aborts the process.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def check_ranks() -> None:
    """Raise where there are no ranks to reduce over."""
    if not (distributed.is_available() and distributed.is_initialized()):
        raise UsageError("reduce='step' reduces over ranks, and torch.distributed is not initialized: call init_process_group first")
    if not distributed.is_gloo_available():
        raise UsageError("reduce='step' speaks through gloo, with which this torch was not built: leave reduce out")


def next_number() -> int:
    """The place of a watch among those of its process, which is the same on all ranks."""
    return next(_numbers)
