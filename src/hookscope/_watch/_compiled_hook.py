"""A hook that dynamo traces into a compiled graph: it reads what a module returns there, and the gradient that arrives at it.

`place.on` is a guard of the graph: there is one with and one without the reading. Nothing else of the watch is, so that equal blocks share
a graph. It is each place's own: of an object that several places share, dynamo would ask in Python, a module each, whether it is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .._taps._hook import Hook, leave_as_it_is
from . import _compiled_op  # noqa: F401  # defines the operations
from ._compiled_meeting import meet_part, meet_whole, readable

if TYPE_CHECKING:
    from ._compiled_sites import Traced
    from ._tap import Tap


class Place:
    """Where the graph's part of a hook finds its slots: through the module it sits on, so that equal modules share a graph.

    Of each slot there are two tensors, for the output and for its gradient; `parts` are those of the tensors in a structured output.
    """

    def __init__(self, tap: Tap, traced: Traced) -> None:
        self.tap = tap
        self.traced = traced
        self.on = traced.on
        self.linear = tap.is_linear
        self.reads = self.taps = False  # what the selection wants: set with the slots
        self.whole: list[torch.Tensor] = []
        self.parts: list[torch.Tensor] = []


class TracedHook(Hook):
    """Calls `action` in eager code, and in a graph reads into `place`."""

    __slots__ = ("place",)

    def __init__(self, action: Callable[..., None], place: Place) -> None:
        super().__init__(action)
        self.place = place

    def __call__(self, module: Any, args: Any, *rest: Any) -> None:
        """`rest` ends with what the module has returned."""
        if not torch.compiler.is_compiling():
            self.action(module, args, *rest)
        elif torch.is_grad_enabled() and not torch.compiler.is_exporting() and self.place.on:
            read(self.place, rest[-1])


leave_as_it_is(TracedHook.__call__.__code__)


def read(place: Place, output: Any) -> None:
    """Traced: put operations into the graph that read each tensor of a module's output."""
    if isinstance(output, torch.Tensor):
        torch._dynamo.comptime.comptime(meet_whole)
        if readable():
            _tap(place, output, place.whole, 0)
    else:
        _read_parts(place, output, "", 0)


def _read_parts(place: Place, value: Any, path: str, number: int) -> int:
    """Read what is inside `value`, found at `path`; tensors are counted from `number` on. Returns the next one's."""
    if isinstance(value, torch.Tensor):
        torch._dynamo.comptime.comptime(meet_part)
        if readable():
            _tap(place, value, place.parts, number)
        return number + 1
    if isinstance(value, (tuple, list)):
        names = getattr(value, "_fields", None)
        for i, part in enumerate(value):
            number = _read_parts(place, part, f"{path}[{i}]" if names is None else f"{path}.{names[i]}", number)
    elif isinstance(value, dict):
        for key, part in value.items():
            number = _read_parts(place, part, f"{path}.{key}" if hasattr(value, "__dataclass_fields__") else f'{path}["{key}"]', number)
    return number


def _tap(place: Place, x: torch.Tensor, slots: list[torch.Tensor], number: int) -> None:
    output, gradient = slots[2 * number] if place.reads else None, slots[2 * number + 1] if place.taps else None
    torch.ops.hookscope.tap(x, output, gradient, place.linear)
