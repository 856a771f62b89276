"""Which call of a module it is that re-entrant checkpointing runs again.

Such checkpointing (torch's, and that of the libraries which do it in an `autograd.Function` of their own) runs a segment in the Function's
`forward`, without a graph, and once more in its `backward`. Both hold the same `ctx`, so what ran under it is told over again, in the same
order. Non-reentrant checkpointing runs a segment again only while it unpacks a saved tensor: the graph was there from the start.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Hashable, Iterator
from types import FrameType
from typing import Any

from torch.autograd.function import BackwardCFunction

UNKNOWN = -1


class Segments:
    """`ran` notes the calls of a first run, `again` finds them; modules are known by any key."""

    def __init__(self) -> None:
        self._calls: weakref.WeakKeyDictionary[Any, dict[Hashable, deque[int]]] = weakref.WeakKeyDictionary()

    def ran(self, module: Hashable, call: int) -> None:
        """This call is under way, without a graph."""
        for ctx in [ctx for where, ctx in _around(sys._getframe(1)) if where == "forward"]:
            self._note(ctx, module, call)

    def again(self, module: Hashable) -> int | None:
        """The call that is being run again with a graph; `UNKNOWN` if its first run was not noted, None if there is no such call."""
        inner = []  # first runs of segments within the segment that is run again
        for where, ctx in _around(sys._getframe(1)):
            if where == "unpack_hook":
                return None
            if where == "forward":
                inner.append(ctx)
                continue
            if (calls := self._calls.get(ctx)) is None:
                return UNKNOWN
            if module not in calls:
                return None
            call = calls[module][0]
            calls[module].rotate(-1)  # a graph that is retained is run again from the first one
            for within in inner:
                self._note(within, module, call)
            return call
        return None

    def _note(self, ctx: Any, module: Hashable, call: int) -> None:
        self._calls.setdefault(ctx, {}).setdefault(module, deque()).append(call)


def _around(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """The autograd Functions' `forward` and `backward` on the stack, with their `ctx`, and what unpacks saved tensors; innermost first."""
    while frame is not None:
        code = frame.f_code
        name = code.co_name
        if name == "unpack_hook":
            yield name, None
        elif name in ("forward", "backward") and code.co_argcount and code.co_varnames[0] != "self":
            ctx = frame.f_locals.get(code.co_varnames[0])
            if isinstance(ctx, BackwardCFunction):
                yield name, ctx
        frame = frame.f_back
