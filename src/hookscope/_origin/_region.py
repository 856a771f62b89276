"""What the program computes with torch outside its models: a tape of calls that can be played again.

From the end of one backward to the start of the next, except inside models, a function mode notes each call: the function, its
arguments, the line. Tensors that earlier calls of the tape have made are noted by number, others by reference; results are not held.
The mode is put in place only where no other of the program's is active: those are never popped in its stead.
"""

from __future__ import annotations

import sys
import weakref
from _thread import get_ident
from collections.abc import Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from ._stack import is_free, take_out
from ._tape import MAX_BYTES, MAX_CALLS, PLAIN, TENSORS, UNCOMMON, Call, Held, Made, alters, draws, learn, seen_drawing, skips, tape, within
from ._thread_end import AtThreadEnd, Last
from ._tracer import is_program

# Looked up once: what is asked at each step is asked with cold caches.
_is_traced_by_dynamo = torch.compiler.is_dynamo_compiling
_push, _pop = torch._C._push_on_torch_function_stack, torch._C._pop_torch_function_stack
_depth, _mode_at = torch._C._len_torch_function_stack, torch._C._get_function_stack_at


class _Noted(NamedTuple):
    """What is kept of a call before it runs."""

    args: Any
    kwargs: Any
    grad: bool
    random: tuple[tuple[torch.Generator, torch.Tensor], ...]
    size: int
    new: bool  # the first call of this function: whether it draws is seen by what becomes of the random state


class Region(TorchFunctionMode):
    """`open` begins a new tape, `pause` and `resume` surround a model's forward, `pause` ends it at the start of backward."""

    def __init__(self) -> None:
        super().__init__()
        self.tape = tape()
        self.gone = False  # it has left for good
        self._at_thread_end = AtThreadEnd(self._thread_ends)
        self._ending = 0  # the thread that has last been asked to tell of its end
        self._taken = 0  # bytes held by the call that is being noted

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_traced_by_dynamo():  # a compiler traces no more than this
            return func(*args, **(kwargs or {}))
        if self.gone:
            return self._pass_by(func, args, kwargs)
        out = self.tape.call(func, args, kwargs)
        return self._called(func, args, kwargs or {}) if out is UNCOMMON else out

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The same in Python, for what is not the common case, or where nothing was built."""
        if torch.compiler.is_compiling() or not self.tape.noting or self.tape.thread != get_ident():
            return func(*args, **kwargs)
        name, new = _worth_noting(func)
        if name == "backward":
            return self._backward(func, args, kwargs)
        if name is None or _transformed():
            return func(*args, **kwargs)
        noted = self._before(name, args, kwargs, new=new)
        out = func(*args, **kwargs)
        if noted is not None:
            try:
                self._after(func, name, noted, args[0] if name == "__setitem__" else out)
            except Exception:  # noqa: BLE001  # the tape may miss a call, the program may not
                self.tape.noting = False
        return out

    def _backward(self, func: Any, args: Any, kwargs: Any) -> Any:
        """It is long, and the watch may be closed meanwhile."""
        try:
            return func(*args, **kwargs)
        finally:
            if self.gone:
                kwargs[Last.__name__] = Last(self._get_out)

    def _pass_by(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A watch that was closed from another thread has left its mode behind in this one: it goes with the first call that allows it.

        While the call runs the mode is off the stack, and comes back on it afterwards. Of a function written in Python the keywords are
        held by the very frame that puts the mode back, until it ends.
        """
        try:
            return func(*args, **(kwargs or {}))
        finally:
            if type(func) is FunctionType and kwargs is not None:
                kwargs[Last.__name__] = Last(self._get_out)

    def _before(self, name: str, args: Any, kwargs: Any, *, new: bool) -> _Noted | None:
        try:
            with torch._C.DisableTorchFunctionSubclass():  # a tensor subclass of the user's is not to see what is read
                return self._noted(name, args, kwargs, new=new)
        except Exception:  # noqa: BLE001  # as above
            return None

    def _noted(self, name: str, args: Any, kwargs: Any, *, new: bool) -> _Noted | None:
        self._taken = 0
        if (kept := self._note(args, kwargs)) is None or self._taken > MAX_BYTES:
            return None
        noted = _Noted(kept[0], kept[1], torch.is_grad_enabled(), (), self._taken, new)
        if new or draws(name) or "generator" in kwargs:
            generator = kwargs.get("generator") or torch.default_generator
            noted = noted._replace(random=((generator, generator.get_state()),))
        if alters(name) and noted.grad and noted.args and isinstance(held := noted.args[0], Held):  # no average of weights, no `zero_grad`
            noted = noted._replace(args=(held._replace(tensor=held.tensor.detach().clone(), version=-1), *noted.args[1:]))
        return noted

    def _after(self, func: Any, name: str, noted: _Noted, out: Any) -> None:
        tape = self.tape
        results = [out] if type(out) is torch.Tensor else [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        if noted.new and noted.random:
            generator, state = noted.random[0]
            with torch._C.DisableTorchFunctionSubclass():
                moved = not torch.equal(generator.get_state(), state)
            if moved:
                seen_drawing(func, name)
            else:
                noted = noted._replace(random=())
        if results:
            place = _place(sys._getframe(2))
            tape.calls.append(Call(tape.number, func, noted.args, noted.kwargs, *place, name, noted.grad, noted.random, noted.size))
            tape.bytes += noted.size
            while tape.bytes > MAX_BYTES or len(tape.calls) > MAX_CALLS:
                tape.bytes -= tape.calls.pop(0).size
            for i, tensor in enumerate(results):
                tape.known[id(tensor)] = weakref.ref(tensor), Made(tape.number, i)
            if len(tape.known) > 4 * MAX_CALLS:
                self._forget_the_dead()
            tape.number += 1

    def _forget_the_dead(self) -> None:
        """Of very many that live, those whose calls are gone, too."""
        tape = self.tape
        kept = {key: known for key, known in tape.known.items() if known[0]() is not None}
        if len(kept) > 2 * MAX_CALLS:
            first = tape.calls[0].number
            kept = {key: (ref, made) for key, (ref, made) in kept.items() if made is None or made.call >= first}
        tape.known.clear()
        tape.known.update(kept)

    # -- from when to when ----------------------------------------------------------------------------------------------------------

    @property
    def calls(self) -> list[Call]:
        """Those that are noted."""
        found: list[Call] = self.tape.calls
        return found

    @property
    def noting(self) -> bool:
        """Whether calls are noted now."""
        return bool(self.tape.noting)

    @property
    def seated(self) -> bool:
        """Whether this is on a stack of modes, or comes back on one when a backward that was called through it is over."""
        return bool(self.tape.thread)

    def open(self, outputs: Sequence[torch.Tensor] = ()) -> None:
        """Forget what is noted and begin again."""
        self.clear()
        self.resume(outputs)

    def resume(self, outputs: Sequence[torch.Tensor] = ()) -> None:
        """Go on noting: a model has returned these.

        While its `__torch_function__` runs, as around `Tensor.backward`, a mode is off the stack; it comes back on top of what is there.
        """
        tape, here = self.tape, get_ident()
        for tensor in outputs:
            tape.known[id(tensor)] = weakref.ref(tensor), None
        tape.noting = True
        if tape.thread != here and is_free(_has_left) and not within():
            _push(self)
            tape.thread = here
            if self._ending != here:
                self._at_thread_end.here()
                self._ending = here

    def pause(self) -> None:
        """Stop noting, and get out of the way."""
        tape = self.tape
        tape.noting = False
        if tape.thread != get_ident():
            return
        if (depth := _depth()) and _mode_at(depth - 1) is self:
            _pop()
        elif not take_out(self) and within():  # it is its own call that runs
            return
        tape.thread = 0

    def leave(self) -> None:
        """Get out of the way for good."""
        self.gone = True
        self.pause()
        self.clear()

    def clear(self) -> None:
        """Forget what is noted."""
        self.tape.calls.clear()
        self.tape.known.clear()
        self.tape.bytes = self.tape.number = 0

    def known(self, tensor: torch.Tensor) -> tuple[weakref.ref[torch.Tensor], Made | None] | None:
        """Where this tensor comes from, as far as the tape knows."""
        found: tuple[weakref.ref[torch.Tensor], Made | None] | None = self.tape.known.get(id(tensor))
        return found if found is not None and found[0]() is tensor else None

    def _get_out(self) -> None:
        take_out(self)
        self.tape.thread = 0

    def _thread_ends(self) -> None:
        self._get_out()
        self._ending = 0  # another one may get its number

    # -- the tape -------------------------------------------------------------------------------------------------------------------

    def _note(self, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """The arguments as they are kept; None where there is no tensor among them: then what comes out is taken as given."""
        kept, tensors = [], False
        for value in (*args, *kwargs.values()):  # the common case, at a tenth of the price of a walk through a tree
            kind = type(value)
            if kind in TENSORS:
                kept.append(self._kept(value))
                tensors = True
            elif kind in PLAIN:
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
        known = self.known(value)
        made = known[1] if known is not None else None
        if made is not None and not self._is_old(made):
            return made
        if known is None or made is not None:
            self._taken += value.numel() * value.element_size()
        # A leaf is held as it is: there is no graph behind it that would be kept alive.
        computed = value.grad_fn is not None
        version = -1 if value.is_inference() else value._version
        return Held(value.detach() if computed else value, version, known is not None and made is None, made, computed)

    def _is_old(self, made: Made) -> bool:
        """Whether the call that made it may be gone when one is made again that is noted now: half of all are kept in any case."""
        tape, half = self.tape, MAX_CALLS // 2
        return made.call < tape.number // half * half or bool(tape.calls and made.call < tape.calls[0].number)


def _worth_noting(func: Any) -> tuple[str | None, bool]:
    """The name of a function that computes something, whatever the program has hung on it; whether it is met for the first time."""
    try:
        name = str(getattr(func, "__name__", ""))
        new = learn(func, name)
        return None if skips(func, name) else name, new
    except Exception:  # noqa: BLE001  # the tape may miss a call, the program may not
        return None, False


def _has_left(mode: object) -> bool:
    return type(mode) is Region and mode.gone


def _place(frame: FrameType | None) -> tuple[CodeType | None, int | None]:
    """The innermost frame outside torch and hookscope: its code, and how far it is."""
    while frame is not None:
        if is_program(frame.f_code.co_filename):
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None, None


def _transformed() -> bool:
    """Whether what is called now is compiled, traced, vmapped or seen by a dispatch mode, which must see no operation of ours."""
    compiled = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return compiled or torch._C._functorch.maybe_current_level() is not None or torch._C._len_torch_dispatch_stack() > 0
