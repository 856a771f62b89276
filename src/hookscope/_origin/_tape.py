"""The calls that are noted, and what is known of tensors; written in C where that was built, in Python by whoever holds it where not."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType
from typing import Any, NamedTuple

import torch

from .._stats._backend import load
from ._tracer import PROGRAMS, is_program

MAX_CALLS = 512  # the latest are kept: a loss is short, a data pipeline may be long
MAX_BYTES = 64 << 20  # of tensors that came from elsewhere and are held by reference
MAX_KINDS = 2_000  # functions whose kind is remembered
_SKIPPED = frozenset(
    {
        *("__set__", "__repr__", "__format__", "item", "tolist", "numpy", "requires_grad_", "register_hook", "detach_"),
        *("_record_function_enter_new", "_record_function_exit._RecordFunction", "_set_grad_enabled"),
    }
)
# What is asked of a tensor computes nothing. The gradients above all: `zero_grad` looks at each, and one that is held is not freed.
_ASKED = frozenset(
    getattr(torch.Tensor, name)
    for name in ("grad", "grad_fn", "is_leaf", "requires_grad", "shape", "dtype", "device", "layout", "ndim", "is_sparse", "is_cuda")
)
_DRAWING = frozenset(
    {
        *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "rrelu", "gumbel_softmax"),
        *("bernoulli", "multinomial", "normal", "poisson", "rand_like", "randn_like", "randint_like", "scaled_dot_product_attention"),
        *("uniform", "exponential", "random", "geometric", "cauchy", "log_normal"),  # each with an underscore behind it
    }
)
_WRITING = frozenset({"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__"})
_WRITING_OVER = frozenset({"zero_", "fill_", "copy_"})
_LASTING = (BuiltinFunctionType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType)
TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
PLAIN = frozenset({int, float, bool, str, type(None), type(...), torch.dtype, torch.device, slice, torch.Size})
KINDS: dict[Any, str | None] = {}  # of functions that neither draw nor alter: their name, or None if they compute nothing

SEEN_DRAWING: set[str] = set()  # names of functions that have drawn, though their names do not say so


class Made(NamedTuple):
    """A tensor that call number `call` of the tape has made, as its `nth`."""

    call: int
    nth: int


class Held(NamedTuple):
    """A tensor from elsewhere: detached, in the version it had (-1: it has none, or is a copy); `root` where a model has returned it.

    `made` where it comes from a call of the tape so long ago that this may be gone when it is needed;
    `computed` where it has a graph: without the other two, something that is not noted has made it.
    """

    tensor: torch.Tensor
    version: int
    root: bool
    made: Made | None = None
    computed: bool = False


class Call(NamedTuple):
    """One noted call."""

    number: int
    func: Callable[..., Any]
    args: Any
    kwargs: Any
    code: CodeType | None  # of the program's innermost frame
    at: int | None  # how far that was: the line is looked up when somebody asks
    name: str
    grad: bool
    random: tuple[tuple[torch.Generator, torch.Tensor], ...]  # the generators it may draw from, and their states
    size: int  # bytes of what is held by reference for it alone

    @property
    def place(self) -> tuple[str | None, int | None]:
        """File and line."""
        if self.code is None or self.at is None:
            return None, None
        return self.code.co_filename, next((line for begin, end, line in self.code.co_lines() if begin <= self.at < end), None)


class PlainTape:
    """What the tape in C has, and nothing that it does."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[weakref.ref[torch.Tensor], Made | None]] = {}  # id -> the tensor; None for what a model returned
        self.calls: list[Call] = []
        self.number = self.bytes = 0  # of the next call; held by all of them
        self.thread = 0  # in whose stack of modes the tape's mode is; 0: in none
        self.noting = False

    def call(self, _func: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any] | None) -> Any:
        """Call it, and note that if it is to be noted; or do nothing and return `UNCOMMON`."""
        return UNCOMMON


def _plainly_within() -> bool:
    """Whether a `__torch_function__` is running in this thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "__torch_function__":
            return True
        frame = frame.f_back
    return False


def skips(func: Any, name: str) -> bool:
    """Whether this function computes nothing that is worth a note."""
    return name in _SKIPPED or (name == "__get__" and func.__self__ in _ASKED)


def draws(name: str) -> bool:
    """Whether a function of this name may draw random numbers, by what is known or has been seen."""
    return name.rstrip("_") in _DRAWING or name in SEEN_DRAWING


def seen_drawing(func: Any, name: str) -> None:
    """It has moved a generator: from now on its state is noted before each call."""
    SEEN_DRAWING.add(name)
    KINDS.pop(func, None)


def writes(name: str) -> bool:
    """Whether a call of this name changes its first argument: `mul_`, `__iadd__`, `__setitem__`."""
    return name in _WRITING if name.endswith("__") else name.endswith("_")


def alters(name: str) -> bool:
    """Whether it does and asks for what was there: of what is written over as a whole, as by `zero_grad`, no copy is needed."""
    return writes(name) and name not in _WRITING_OVER


def learn(func: Any, name: str) -> bool:
    """Remember what kind of function this is, if it is of the common kind, and torch's own: those stay. Whether that is new."""
    lasting = type(func) in _LASTING or (type(func) is FunctionType and str(func.__module__).startswith("torch."))
    if not lasting or func in KINDS or name == "backward" or draws(name) or alters(name):
        return False
    if len(KINDS) >= MAX_KINDS:
        KINDS.clear()
    KINDS[func] = None if skips(func, name) else name
    return True


TAPE_KERNEL: Any = load("_tape_native", __package__)
UNCOMMON: object = TAPE_KERNEL.UNCOMMON if TAPE_KERNEL else object()
within: Callable[[], bool] = TAPE_KERNEL.within if TAPE_KERNEL else _plainly_within
tape: Callable[[], Any] = partial(TAPE_KERNEL.Tape, MAX_CALLS, MAX_BYTES) if TAPE_KERNEL else PlainTape
if TAPE_KERNEL:
    TAPE_KERNEL.prepare(
        *(torch.Tensor, torch.nn.Parameter, PLAIN, Made, Held, Call, KINDS, PROGRAMS, is_program),
        *(torch._C._functorch.maybe_current_level, torch._C._get_tracing_state),
        *(torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack, torch.is_grad_enabled),
    )
