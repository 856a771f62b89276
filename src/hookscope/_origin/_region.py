"""What the program computes with torch outside its models: a tape of calls, played again when something there has gone bad.

From the end of one backward to the start of the next, except inside models, a function mode notes each call: the function, its
arguments, the line. Tensors that earlier calls of the tape have made are noted by number, others by reference; results are not held.
The mode is put in place only where no other is active and taken away only when it is on top, so that modes of the program's own are
never popped in its stead.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from .._taps._modes import unseen
from ._facts import badness
from ._tracer import Place, Tracer, line_of
from ._verdict import Verdict
from ._walk import origin

MAX_CALLS = 512  # the latest are kept: a loss is short, a data pipeline may be long
MAX_BYTES = 64 << 20  # of tensors that came from elsewhere and are held by reference
_SKIPPED = frozenset(
    {"backward", "__set__", "__repr__", "__format__", "item", "tolist", "numpy", "requires_grad_", "register_hook", "detach_"}
)
# What is asked of a tensor computes nothing. The gradients above all: `zero_grad` looks at each, and one that is held is not freed.
_ASKED = frozenset(
    getattr(torch.Tensor, name)
    for name in ("grad", "grad_fn", "is_leaf", "requires_grad", "shape", "dtype", "device", "layout", "ndim", "is_sparse", "is_cuda")
)
_DRAWING = frozenset(
    {"dropout", "bernoulli", "multinomial", "rand_like", "randn_like", "randint_like", "normal", "poisson", "alpha_dropout"}
)


_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, slice, torch.Size})


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor that call number `call` of the tape has made, as its `index`-th."""

    call: int
    index: int


@dataclass(slots=True)
class Held:
    """A tensor from elsewhere: detached, in the version it had; `root` where it is what a model returned."""

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
    random: torch.Tensor | None


@dataclass(slots=True)
class _Noted:
    """What is kept of a call before it runs."""

    args: Any
    kwargs: Any
    grad: bool
    random: torch.Tensor | None


class Region(TorchFunctionMode):
    """`open` begins a new tape, `pause` and `resume` surround a model's forward, `stop` ends it at the start of backward."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: deque[Call] = deque(maxlen=MAX_CALLS)
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], Made | None]] = {}  # id -> the tensor; None for what a model returned
        self._noting = False
        self._pushed = False
        self._bytes = 0
        self._number = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._noting:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _SKIPPED or (name == "__get__" and func.__self__ in _ASKED) or _transformed():
            return func(*args, **kwargs)
        noted = self._before(name, args, kwargs)
        out = func(*args, **kwargs)
        if noted is not None:
            try:
                self._after(func, name, noted, out)
            except Exception:  # noqa: BLE001  # the tape may miss a call, the program may not
                self._noting = False
        return out

    def _before(self, name: str, args: Any, kwargs: Any) -> _Noted | None:
        try:
            if self._bytes > MAX_BYTES or (kept := self._note(args, kwargs)) is None:
                return None
            random = torch.get_rng_state() if name.rstrip("_") in _DRAWING else None
            return _Noted(kept[0], kept[1], torch.is_grad_enabled(), random)
        except Exception:  # noqa: BLE001  # as above
            return None

    def _after(self, func: Callable[..., Any], name: str, noted: _Noted, out: Any) -> None:
        results = [out] if type(out) is torch.Tensor else [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        if results:
            place = line_of(sys._getframe(2))
            self.calls.append(Call(self._number, func, noted.args, noted.kwargs, place, name, noted.grad, noted.random))
            for i, tensor in enumerate(results):
                self._known[id(tensor)] = weakref.ref(tensor), Made(self._number, i)
            self._number += 1

    # -- from when to when ----------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Forget what is noted and begin again."""
        self.clear()
        self.resume()

    def resume(self) -> None:
        """Go on noting."""
        self._noting = True
        if not self._pushed and torch._C._len_torch_function_stack() == 0:
            self.__enter__()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
            self._pushed = True

    def pause(self) -> None:
        """Stop noting, and get out of the way where that is possible."""
        self._noting = False
        depth = torch._C._len_torch_function_stack()
        if self._pushed and depth and torch._C._get_function_stack_at(depth - 1) is self:
            self.__exit__(None, None, None)
            self._pushed = False

    def clear(self) -> None:
        """Forget what is noted."""
        self.calls.clear()
        self._known.clear()
        self._bytes = 0

    def returned(self, outputs: list[torch.Tensor]) -> None:
        """A model has returned these."""
        for tensor in outputs:
            self._known[id(tensor)] = weakref.ref(tensor), None

    # -- the tape -------------------------------------------------------------------------------------------------------------------

    def _note(self, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """The arguments as they are kept; None where there is no tensor among them: then what comes out is taken as given."""
        kept = []
        found = False
        for value in args:  # the common case, at a tenth of the price of a walk through a tree
            kind = type(value)
            if kind in _TENSORS:
                kept.append(self._kept(value))
                found = True
            elif kind in _PLAIN:
                kept.append(value)
            else:
                return self._note_tree(args, kwargs)
        if kwargs:
            return self._note_tree(args, kwargs)
        return (tuple(kept), {}) if found else None

    def _note_tree(self, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if not any(isinstance(t, torch.Tensor) for t in tree_leaves((args, kwargs))):
            return None
        kept = tree_map(self._kept, (args, kwargs))
        return kept[0], kept[1]

    def _kept(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        known = self._known.get(id(value))
        ours = known is not None and known[0]() is value
        if ours and known is not None and known[1] is not None:
            return known[1]
        if not ours:
            self._bytes += value.numel() * value.element_size()
        # A leaf is held as it is: there is no graph behind it that would be kept alive.
        held = value if value.grad_fn is None else value.detach()
        return Held(held, -1 if value.is_inference() else value._version, ours)


def _transformed() -> bool:
    """Whether what is called now is compiled, traced, vmapped or seen by a dispatch mode, which must see no operation of ours."""
    compiled = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return compiled or torch._C._functorch.maybe_current_level() is not None or torch._C._len_torch_dispatch_stack() > 0


@dataclass(frozen=True, slots=True)
class Played:
    """What playing the tape again showed."""

    verdict: Verdict | None
    notes: tuple[str, ...] = ()


def play(region: Region, losses: list[torch.Tensor], *, backward: bool) -> Played:
    """Run the noted calls again under the tracer and name the first bad one: among the forwards, or, if `backward`, behind them."""
    tracer = Tracer({})
    values: dict[Made, torch.Tensor] = {}
    notes: list[str] = []
    roots: dict[int, torch.Tensor] = {}
    wanted = {known[1] for loss in losses if (known := region._known.get(id(loss))) is not None}
    last: list[torch.Tensor] = []
    state = torch.get_rng_state()
    with torch.enable_grad(), tracer:
        for call in region.calls:
            tracer.place = Place(None, call.place[0], call.place[1], call.name)
            results = _again(call, values, roots, notes)
            values.update({Made(call.number, i): t for i, t in enumerate(results)})
            last += [t for i, t in enumerate(results) if Made(call.number, i) in wanted]
        torch.set_rng_state(state)
        bad = [t for t in last or list(values.values())[-1:] if badness(t)]
        tracer.place = None
        leaves = [t for t in roots.values() if t.requires_grad]
        grounded = [t for t in last if t.grad_fn is not None]
        if backward and grounded and leaves and not bad:
            found = torch.autograd.grad(grounded, leaves, [torch.ones_like(t) for t in grounded], allow_unused=True)
            bad = [g for g in found if g is not None and badness(g)]
    verdict = origin(tracer.trace, bad) if bad else None
    return Played(verdict, tuple(dict.fromkeys(notes)))


def _again(call: Call, values: dict[Made, torch.Tensor], roots: dict[int, torch.Tensor], notes: list[str]) -> list[torch.Tensor]:
    def given(kept: Any) -> Any:
        if isinstance(kept, Made):
            if kept not in values:
                raise KeyError(kept)
            return values[kept]
        if isinstance(kept, Held):
            if kept.version not in (-1, kept.tensor._version):
                notes.append("a tensor outside the model was written to in place after it was used")
            if id(kept.tensor) not in roots:
                roots[id(kept.tensor)] = _copy(kept)
            return roots[id(kept.tensor)]
        return kept

    try:
        args, kwargs = tree_map(given, (call.args, call.kwargs), is_leaf=lambda x: isinstance(x, (Made, Held)))
        if call.random is not None:
            torch.set_rng_state(call.random)
        with torch.set_grad_enabled(call.grad):
            out = call.func(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  # whatever it was, the rest of the tape may do without
        notes.append(f"{call.name} could not be called again ({type(error).__name__})")
        return []
    return [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]


def _copy(kept: Held) -> torch.Tensor:
    """Calls that write in place, as those of `zero_grad` do, must not write to what the program holds when they are made again."""
    with unseen():
        return kept.tensor.detach().clone().requires_grad_(_wants_grad(kept))


def _wants_grad(kept: Held) -> bool:
    return kept.root and kept.tensor.is_floating_point()
