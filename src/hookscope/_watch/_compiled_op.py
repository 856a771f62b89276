"""Operations of our own for compiled graphs: they merge the stats of a tensor into a slot, and no compiler looks inside.

They read what is stored, with the kernel that reads eager tensors. So the numbers are those of an eager run also in half precision, where a
fused kernel would go on with values that it never rounds, and the compiler makes of the model's own operations what it makes without us.

`tap` is what a hook puts into the graph. A compiler that looks for gradients runs its Python as it traces: there it becomes a `note` of the
tensor and a hook on its gradient that is a `note_gradient`, as autograd itself would have it. The tensor is never replaced, so outputs that
share memory with inputs, and writes in place, mean what they mean without us.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch
from torch.fx.node import has_side_effect

from .._taps._modes import unseen
from .._taps._parts import local
from ._compiled_rows import merge_into
from ._tap import matrix_of

_LIBRARY: Any = torch.library.Library("hookscope", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("tap(Tensor x, Tensor(a!)? output, Tensor? gradient, bool linear) -> ()")
_LIBRARY.define("note(Tensor x, Tensor(a!) slot) -> ()")
# A gradient's slot is not declared to be written to: it is saved for the backward, and each write would be taken for one of the program's.
_LIBRARY.define("note_gradient(Tensor x, Tensor slot, int number) -> ()")
_graph_task, _level = torch._C._current_graph_task_id, torch._C._functorch.maybe_current_level
_numbers = itertools.count()  # of two operations with equal arguments a compiler would make one


class Toll:
    """What the operations have cost in this process, in nanoseconds, and what has gone wrong in them, which must not reach the program."""

    spent = 0
    errors: list[Exception] = []  # noqa: RUF012  # of the process, as the operations are


def _tap(x: torch.Tensor, output: torch.Tensor | None, gradient: torch.Tensor | None, linear: bool) -> None:
    if _level() is not None:  # inside a transform of torch.func a tensor stands for many
        return
    try:
        if output is not None:
            torch.ops.hookscope.note(local(x), output)
        if gradient is not None and x.requires_grad and torch.is_grad_enabled():
            number = next(_numbers)
            hooked = matrix_of(x) if linear else x
            hooked.register_hook(lambda grad: torch.ops.hookscope.note_gradient(local(grad), gradient, number))  # type: ignore[no-untyped-call]
    except Exception as error:
        Toll.errors.append(error)


def _note(x: torch.Tensor, slot: torch.Tensor) -> None:
    _merge(x, slot, again=_graph_task() != -1)


def _note_gradient(x: torch.Tensor, slot: torch.Tensor, _number: int) -> None:
    _merge(x, slot, again=None)


def _merge(x: torch.Tensor, slot: torch.Tensor, *, again: bool | None) -> None:
    began = time.perf_counter_ns()
    try:
        with unseen():
            merge_into(slot, x, again=again)
    except Exception as error:
        Toll.errors.append(error)
    Toll.spent += time.perf_counter_ns() - began


_LIBRARY.impl("tap", _tap, "CompositeImplicitAutograd")
_LIBRARY.impl("note", _note, "CompositeExplicitAutograd")
_LIBRARY.impl("note_gradient", _note_gradient, "CompositeExplicitAutograd")
torch.library.register_fake("hookscope::note", lambda x, slot: None, lib=_LIBRARY)
torch.library.register_fake("hookscope::note_gradient", lambda x, slot, number: None, lib=_LIBRARY)
has_side_effect(torch.ops.hookscope.note_gradient.default)
