"""Every operation of the program looked at while it runs: for a second run, when one knows at which step to look."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from ._alone import many_ranks
from ._facts import badness
from ._tracer import Trace, Tracer
from ._verdict import Verdict
from ._walk import origin, writer_of


class LiveTrace:
    """`begin` puts a tracer below all other modes; `origin` says what it has seen since the last `forget`; `end` takes it out.

    Unlike a replay it sees what a program cannot do twice: a generator of its own, a counter, an input that is written to later.
    """

    def __init__(self, names: Callable[[], dict[int, str]]) -> None:
        self._names = names
        self._tracer: Tracer | None = None
        self._stance: Callable[[], object] = lambda: None

    @property
    def on(self) -> bool:
        """Whether it looks."""
        return self._tracer is not None

    def begin(self) -> None:
        """To be called where the program's own modes are in place: they stay on top, and leave in the order they came."""
        if self._tracer is not None:
            return
        self._stance = _eager()
        tracer = Tracer(self._names())
        above = _taken_off()
        tracer.__enter__()
        self._tracer = tracer
        _put_on(above)

    def entered(self, batch: int | None) -> None:
        """A forward enters a model with so many samples; modules may have been added."""
        if self._tracer is not None:
            self._tracer.batch = batch
            self._tracer._names.update(self._names())

    def origin(self, bad: Sequence[torch.Tensor]) -> Verdict | None:
        """Where the first of these tensors that is bad became so, or else anything did; or what has written there what is bad: not where
        other ranks may have sent it, each of which names what it has made itself.
        """
        if self._tracer is None:
            return None
        bad = [tensor for tensor in bad if badness(tensor)]
        found = origin(self._tracer.trace, bad) or (None if many_ranks() else writer_of(self._tracer.trace, bad))
        return None if found is None else replace(found, outside=found.module is None)

    def forget(self) -> None:
        """What was seen was healthy."""
        if self._tracer is not None:
            self._tracer.trace = Trace()
            self._tracer._places.clear()

    def end(self) -> None:
        """Look no more."""
        tracer, self._tracer = self._tracer, None
        if tracer is None:
            return
        above = []
        while torch._C._len_torch_dispatch_stack():
            if (top := _pop_mode()) is tracer:
                _push_mode(top)
                tracer.__exit__(None, None, None)
                break
            above.append(top)
        _put_on(above)
        self._stance()


def _taken_off() -> list[TorchDispatchMode]:
    return [_pop_mode() for _ in range(torch._C._len_torch_dispatch_stack())]


def _put_on(modes: list[TorchDispatchMode]) -> None:
    for mode in reversed(modes):
        _push_mode(mode)


def _eager() -> Callable[[], object]:
    """Compiled code shows no operation: from now on it runs as it was written, where anything was compiled. Returns what undoes that."""
    if "torch._dynamo" not in sys.modules:
        return lambda: None
    stance = torch.compiler.set_stance("force_eager")

    def undo() -> None:
        with suppress(Exception):
            stance.__exit__(None, None, None)

    return undo
