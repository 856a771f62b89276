"""What the program computes with torch outside its models: a tape of calls that can be played again.

From the end of one backward to the start of the next, except inside models, a function mode notes each call: the function, its
arguments, the line. Tensors that earlier calls of the tape have made are noted by number, others by reference; results are not held.
The mode is put in place only where no other of the program's is active: those are never popped in its stead.
"""

from __future__ import annotations

import sys
import weakref
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode
from torch.utils._device import DeviceContext
from torch.utils._pytree import tree_leaves, tree_map

from ._thread_end import AtThreadEnd, Last
from ._tracer import line_of

MAX_CALLS = 512  # the latest are kept: a loss is short, a data pipeline may be long
MAX_BYTES = 64 << 20  # of tensors that came from elsewhere and are held by reference
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
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, slice, torch.Size})


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor that call number `call` of the tape has made, as its `index`-th."""

    call: int
    index: int


@dataclass(slots=True)
class Held:
    """A tensor from elsewhere: detached, in the version it had (-1: it has none, or is a copy); `root` where a model has returned it."""

    tensor: torch.Tensor
    version: int
    root: bool


@dataclass(slots=True)
class Call:
    """One noted call."""

    number: int
    func: Callable[..., Any]
    args: Any
    kwargs: Any
    place: tuple[str | None, int | None]
    name: str
    grad: bool
    random: list[tuple[torch.Generator, torch.Tensor]]  # the generators it may draw from, and their states
    size: int  # bytes of what is held by reference for it alone


@dataclass(slots=True)
class _Noted:
    """What is kept of a call before it runs."""

    args: Any
    kwargs: Any
    grad: bool
    random: list[tuple[torch.Generator, torch.Tensor]]
    size: int


class Region(TorchFunctionMode):
    """`open` begins a new tape, `pause` and `resume` surround a model's forward, `pause` ends it at the start of backward."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: deque[Call] = deque()
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], Made | None]] = {}  # id -> the tensor; None for what a model returned
        self.noting = self._gone = False  # whether calls are noted now; whether it has left for good
        self._thread: int | None = None  # in whose stack of modes this one is
        self._at_thread_end = AtThreadEnd(lambda: _take_out(self))
        self._bytes = self._taken = 0  # held by all calls; by the one that is being noted
        self._number = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling() or not self.noting or self._thread != get_ident():  # a compiler traces no more than the first
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "backward":
            return self._backward(func, args, kwargs)
        if name in _SKIPPED or (name == "__get__" and func.__self__ in _ASKED) or _transformed():
            return func(*args, **kwargs)
        noted = self._before(name, args, kwargs)
        out = func(*args, **kwargs)
        if noted is not None:
            try:
                self._after(func, name, noted, args[0] if name == "__setitem__" else out)
            except Exception:  # noqa: BLE001  # the tape may miss a call, the program may not
                self.noting = False
        return out

    def _backward(self, func: Any, args: Any, kwargs: Any) -> Any:
        """While it runs this mode is off the stack, and comes back on it afterwards: also if a hook has closed the watch meanwhile."""
        try:
            return func(*args, **kwargs)
        finally:
            if self._gone:  # the keywords are held by the very frame that puts the mode back, until it ends
                kwargs[Last.__name__] = Last(lambda: _take_out(self))

    def _before(self, name: str, args: Any, kwargs: Any) -> _Noted | None:
        try:
            with torch._C.DisableTorchFunctionSubclass():  # a tensor subclass of the user's is not to see what is read
                return self._noted(name, args, kwargs)
        except Exception:  # noqa: BLE001  # as above
            return None

    def _noted(self, name: str, args: Any, kwargs: Any) -> _Noted | None:
        self._taken = 0
        if (kept := self._note(args, kwargs)) is None or self._taken > MAX_BYTES:
            return None
        noted = _Noted(kept[0], kept[1], torch.is_grad_enabled(), [], self._taken)
        if name.rstrip("_") in _DRAWING or "generator" in kwargs:
            generator = kwargs.get("generator") or torch.default_generator
            noted.random = [(generator, generator.get_state())]
        if writes(name) and noted.grad and noted.args and isinstance(held := noted.args[0], Held):  # no average of weights, no `zero_grad`
            noted.args = (Held(held.tensor.detach().clone(), -1, held.root), *noted.args[1:])
        return noted

    def _after(self, func: Callable[..., Any], name: str, noted: _Noted, out: Any) -> None:
        results = [out] if type(out) is torch.Tensor else [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        if results:
            place = line_of(sys._getframe(2))
            self.calls.append(Call(self._number, func, noted.args, noted.kwargs, place, name, noted.grad, noted.random, noted.size))
            self._bytes += noted.size
            while self._bytes > MAX_BYTES or len(self.calls) > MAX_CALLS:
                self._bytes -= self.calls.popleft().size
            for i, tensor in enumerate(results):
                self._known[id(tensor)] = weakref.ref(tensor), Made(self._number, i)
            if len(self._known) > 4 * MAX_CALLS:
                self._known = {key: known for key, known in self._known.items() if known[0]() is not None and self._can_play(known[1])}
            self._number += 1

    def _can_play(self, made: Made | None) -> bool:
        return made is None or made.call >= self.calls[0].number

    # -- from when to when ----------------------------------------------------------------------------------------------------------

    @property
    def seated(self) -> bool:
        """Whether this is on a stack of modes, or comes back on one when a backward that was called through it is over."""
        return self._thread is not None

    def open(self) -> None:
        """Forget what is noted and begin again."""
        self.clear()
        self.resume()

    def resume(self) -> None:
        """Go on noting."""
        self.noting = True
        here = get_ident()
        if self._thread != here and _may_enter():
            self.__enter__()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
            self._thread = here
            self._at_thread_end.here()

    def pause(self) -> None:
        """Stop noting, and get out of the way."""
        self.noting = False
        here = self._thread is not None and self._thread == get_ident()
        if here and (_take_out(self) or not _within_a_mode(sys._getframe(1))):  # else it is its own call that runs
            self._thread = None

    def leave(self) -> None:
        """Get out of the way for good."""
        self._gone = True
        self.pause()
        self.clear()

    def clear(self) -> None:
        """Forget what is noted."""
        self.calls.clear()
        self._known.clear()
        self._bytes = 0

    def returned(self, outputs: list[torch.Tensor]) -> None:
        """A model has returned these."""
        for tensor in outputs:
            self._known[id(tensor)] = weakref.ref(tensor), None

    def known(self, tensor: torch.Tensor) -> tuple[weakref.ref[torch.Tensor], Made | None] | None:
        """Where this tensor comes from, as far as the tape knows."""
        found = self._known.get(id(tensor))
        return found if found is not None and found[0]() is tensor else None

    # -- the tape -------------------------------------------------------------------------------------------------------------------

    def _note(self, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """The arguments as they are kept; None where there is no tensor among them: then what comes out is taken as given."""
        kept, tensors = [], False
        for value in (*args, *kwargs.values()):  # the common case, at a tenth of the price of a walk through a tree
            kind = type(value)
            if kind in _TENSORS:
                kept.append(self._kept(value))
                tensors = True
            elif kind in _PLAIN:
                kept.append(value)
            else:
                return self._note_tree(args, kwargs)
        if not tensors:
            return None
        return tuple(kept[: len(args)]), dict(zip(kwargs, kept[len(args) :], strict=True))

    def _note_tree(self, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        self._taken = 0
        if not any(isinstance(t, torch.Tensor) for t in tree_leaves((args, kwargs))):
            return None
        kept = tree_map(self._kept, (args, kwargs))
        return kept[0], kept[1]

    def _kept(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        known = self._known.get(id(value))
        if known is None or known[0]() is not value:
            known = None
            self._taken += value.numel() * value.element_size()
        elif known[1] is not None:
            return known[1]
        # A leaf is held as it is: there is no graph behind it that would be kept alive.
        held = value if value.grad_fn is None else value.detach()
        return Held(held, -1 if value.is_inference() else value._version, known is not None)


def writes(name: str) -> bool:
    """Whether a call of this name changes its first argument: `mul_`, `__iadd__`, `__setitem__`."""
    if name.endswith("__"):
        return name in _WRITING
    return name.endswith("_") and name not in ("zero_", "fill_", "copy_")


def _take_out(mode: TorchFunctionMode) -> bool:
    """Take a mode from the stack, wherever it is; whether it was there."""
    above = []
    while found := torch._C._len_torch_function_stack() > 0:
        if (top := _pop_mode()) is mode:  # type: ignore[no-untyped-call]  # torch leaves it unannotated
            break
        above.append(top)
    for other in reversed(above):
        _push_mode(other)  # type: ignore[no-untyped-call]
    return found


def _may_enter() -> bool:
    """Whether there is no other mode but that of a default device, which knows how to get out from below."""
    depth = torch._C._len_torch_function_stack()
    free = depth == 0 or (depth == 1 and isinstance(torch._C._get_function_stack_at(0), DeviceContext))
    return free and not _within_a_mode(sys._getframe(2))


def _within_a_mode(frame: FrameType | None) -> bool:
    """While its `__torch_function__` runs, as around `Tensor.backward`, a mode is off the stack; it comes back on top of what is there."""
    while frame is not None:
        if frame.f_code.co_name == "__torch_function__":
            return True
        frame = frame.f_back
    return False


def _transformed() -> bool:
    """Whether what is called now is compiled, traced, vmapped or seen by a dispatch mode, which must see no operation of ours."""
    compiled = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return compiled or torch._C._functorch.maybe_current_level() is not None or torch._C._len_torch_dispatch_stack() > 0
