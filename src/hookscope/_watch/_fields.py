"""The fields that hooks write: those of structs in C where it was compiled, whose code does the usual case without Python.

Classes of this package extend them. Whatever is written here may be written there as well, between any two calls of the program.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from .._stats import Row
from .._stats._backend import KERNEL, load
from .._stats._plain import FLOATS
from .._taps._modes import QUESTIONS

if TYPE_CHECKING:
    from ._locating import Locator

NATIVE = load("_native", __package__) if KERNEL is not None else None

if TYPE_CHECKING or NATIVE is None:

    class Shared:
        """What the hooks of one watch share. `on` gates them all; it changes only between steps."""

        on: bool
        plain: bool  # gradients that arrive now are those of an ordinary backward
        seq: int  # of the next output
        blamed: int  # modules whose inputs were read because their output was not finite
        lane: int  # the thread whose forward is under way, where no other has to be reckoned with; else 0
        spent: int  # nanoseconds
        touched: list[Any]  # taps called since the last fold
        outputs: list[Any]  # slots of outputs read since then, and of gradients
        gradients: list[Any]
        last_tensor: weakref.ref[torch.Tensor] | None  # the one read last, the version it had, and the slot that it is in
        last_version: int
        last_slot: Any
        viewed: weakref.ref[torch.Tensor] | None  # the view that was tapped last, with the version that it had
        viewed_version: int
        locator: Locator | None

        def __new__(cls, *_args: Any, **_kwargs: Any) -> Any:
            self = super().__new__(cls)
            self.on = self.plain = False
            self.seq = self.blamed = self.lane = self.spent = self.last_version = self.viewed_version = 0
            self.last_tensor = self.last_slot = self.viewed = self.locator = None
            return self

    class Called:
        """Where one hooked module stands in the current micro-batch: its calls, and the slots of the first one."""

        __slots__ = ("calls", "fired", "first", "is_linear", "parts")
        calls: int
        fired: bool
        first: Any  # if it returns a tensor
        parts: tuple[Any, ...] | None  # if it returns a tuple of them, and nothing for None
        is_linear: bool

        def __new__(cls, *_args: Any, **_kwargs: Any) -> Any:
            self = super().__new__(cls)
            self.calls, self.fired, self.first, self.parts, self.is_linear = 0, False, None, None, False
            return self

    class Written:
        """Where the stats of one tensor are written; a row is None where that side is not wanted, and its site then -1."""

        __slots__ = (
            "call",
            "followers",
            "follows",
            "forwards",
            "grad_at",
            "grad_row",
            "grad_site",
            "grad_written",
            "output_at",
            "output_row",
            "output_site",
            "owner",
            "seen",
            "seq",
            "source_at",
            "source_row",
        )
        follows: bool  # this call's tensor is another slot's too, which reads it
        grad_written: bool
        seq: int
        forwards: int  # how often it was filled anew: what belongs to an earlier graph is told by that
        seen: int  # for which of these a gradient came last
        output_site: int
        grad_site: int
        call: int  # of its module
        output_at: int  # addresses of the rows, 0 where the kernel cannot write there
        grad_at: int
        owner: Any
        output_row: Row | None
        grad_row: Row | None
        source_row: Row | None  # where the output has been read
        source_at: int
        followers: list[Any]  # containers that returned this very tensor

        def __new__(cls, *_args: Any, **_kwargs: Any) -> Any:
            self = super().__new__(cls)
            self.follows = self.grad_written = False
            self.call = self.seq = self.forwards = self.seen = self.output_site = self.grad_site = 0
            self.output_at = self.grad_at = self.source_at = 0
            self.owner = self.output_row = self.grad_row = self.source_row = None
            return self

else:
    Shared, Called, Written = NATIVE.Shared, NATIVE.Called, NATIVE.Written
    assert KERNEL is not None
    NATIVE.prepare(torch.Tensor, OrderedDict, FLOATS, QUESTIONS, KERNEL.for_hooks)
