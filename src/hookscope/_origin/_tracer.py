"""Watches every operation of a second run, forward and backward, and remembers which made something bad out of what."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from ._constants import Constants, storage_of
from ._facts import FINE, Badness, bad_samples, badness, harmful, largest, operand
from ._verdict import Operand

TORCH = os.path.dirname(torch.__file__) + os.sep
OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
EXAMPLE = f"{OURS}_cli{os.sep}_demo_training.py"  # a program like a user's, in all but its place
JUMP = 100.0  # growth of the largest magnitude within one operation that is worth remembering, or of its inverse
# Their results are memory that nobody has written to yet.
_UNWRITTEN = frozenset({"empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "resize_", "set_"})
# These ignore what their first argument held.
_OVERWRITING = frozenset(
    {"bernoulli_", "uniform_", "normal_", "random_", "exponential_", "zero_", "fill_", "copy_", "zero", "native_dropout"}
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the program an operation was called: in which module's forward, by which line, through which function of torch."""

    module: str | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None


@dataclass(slots=True)
class Step:
    """One operation that was given, or has made, something bad; or, if asked for, something far larger or smaller than it was given."""

    op: str
    node: str | None  # the autograd node, in the backward
    place: Place
    given: Badness
    made: Badness
    parents: tuple[int, ...]
    operands: tuple[Operand, ...] = ()
    samples: tuple[int, ...] = ()
    growth: float = 1.0  # of the largest magnitude
    harm: bool = False  # the result is worse than -inf in masked places
    harmed: bool = False  # something that went in was


@dataclass(slots=True)
class Trace:
    """The steps of interest, in order."""

    steps: list[Step] = field(default_factory=list)
    holding: dict[int, int] = field(default_factory=dict)  # storage -> the step that has made it bad
    returned: list[int] = field(default_factory=list)  # the steps that made what modules have returned bad, -inf as in a mask apart

    def maker(self, tensor: torch.Tensor) -> int | None:
        """The step that has made this tensor bad."""
        return self.holding.get(storage_of(tensor)) if tensor.layout == torch.strided else None


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    """Active as a context manager; `place` may be set to say where the operations that follow come from. `jumps`: what has become far
    larger or smaller is a step of interest, too, against what went in, these constants apart.
    """

    def __init__(self, names: dict[int, str], batch: int | None = None, *, jumps: Constants | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = Trace()
        self.place: Place | None = None
        self._names = names
        self.batch = batch
        self._jumps = jumps
        self._stack: list[str] = []
        self._places: dict[int, Place] = {}  # autograd sequence number -> where its forward operation was called
        self._hooks = ExitStack()

    def __enter__(self) -> Tracer:
        before = torch_module.register_module_forward_pre_hook(self._enter_module)
        after = torch_module.register_module_forward_hook(self._leave_module, always_call=True)
        self._hooks.callback(before.remove)
        self._hooks.callback(after.remove)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._hooks.close()
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]

    def _enter_module(self, module: nn.Module, _args: Any) -> None:
        self._stack.append(self._names.get(id(module), type(module).__name__))

    def _leave_module(self, _module: nn.Module, _args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()
        with _disable_current_modes():
            bad = [t for t in _tensors(output) if harmful(t)]
        self.trace.returned += [maker for t in bad if (maker := self.trace.maker(t)) is not None]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        op, node = _op_name(func), torch._C._current_autograd_node()
        inputs = _tensors((args, kwargs))
        if op in _OVERWRITING and args and isinstance(args[0], torch.Tensor):
            inputs = [t for t in inputs if t is not args[0]]
        given = [badness(t) for t in inputs]
        parents = [maker for t, bad in zip(inputs, given, strict=True) if bad and (maker := self.trace.maker(t)) is not None]
        size = max((largest(t) for t in self._jumps.varying(inputs)), default=0.0) if self._jumps is not None else 0.0
        harmed = any(harmful(t) for t, bad in zip(inputs, given, strict=True) if bad)
        writes = _writes(func)
        facts = _operands(inputs) if writes else None  # it may write over them
        out = func(*args, **(kwargs or {}))
        place, name = self._where(node)
        if op not in _UNWRITTEN and not _is_view(func):
            results = _tensors(out)
            made = [badness(t) for t in results]
            whole = _any(made)
            growth = max(largest(t) for t in results) / size if size > 0 and results else 1.0
            if whole or not 1 / JUMP <= growth <= JUMP:
                facts = facts or _operands(inputs)
                samples = next((found for t in results if (found := bad_samples(t, self.batch))), ())
                step = Step(op, name, place, _any(given), whole, tuple(dict.fromkeys(parents)), facts, samples, growth)
                step.harm, step.harmed = any(map(harmful, results)), harmed
                self.trace.steps.append(step)
            self._hold(results, made, written=writes)
            if self._jumps is not None:
                self._jumps.made(results, inputs)
        return out

    def _hold(self, results: list[torch.Tensor], made: list[Badness], *, written: bool) -> None:
        for tensor, bad in zip(results, made, strict=True):
            if bad:
                self.trace.holding[storage_of(tensor)] = len(self.trace.steps) - 1
            elif not (written and tensor.nbytes < tensor.untyped_storage().nbytes()):  # the rest of it is as it was
                self.trace.holding.pop(storage_of(tensor), None)

    def _where(self, node: Any) -> tuple[Place, str | None]:
        if node is None or self._stack:
            place = self._here()
            self._places.setdefault(torch._C._autograd._get_sequence_nr() - 1, place)
            return place, None
        sequence = node._sequence_nr() if hasattr(node, "_sequence_nr") else -1
        place = self._places.get(sequence, Place())
        file, line = line_of(sys._getframe(2))  # in the backward of a Function of the program's own
        return (place if file is None else replace(place, file=file, line=line)), node.name()

    def _here(self) -> Place:
        module = self._stack[-1] if self._stack else None
        if self.place is not None and module is None:
            return self.place
        file, line, function = source_of(sys._getframe(2))
        return Place(module, file, line, function)


PROGRAMS: dict[str, bool] = {}  # whether what is written in a file is neither torch's nor ours


def is_program(path: str) -> bool:
    """Whether a file is the program's own."""
    found = PROGRAMS.get(path)
    if found is None:
        if len(PROGRAMS) > 10_000:
            PROGRAMS.clear()
        PROGRAMS[path] = found = path == EXAMPLE or not path.startswith((TORCH, OURS, "<"))
    return found


def line_of(frame: FrameType | None) -> tuple[str | None, int | None]:
    """File and line of the innermost frame outside torch and hookscope, if hookscope has called it."""
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(OURS) and path != EXAMPLE:
            break
        if is_program(path):
            return path, frame.f_lineno
        frame = frame.f_back
    return None, None


def source_of(frame: FrameType | None) -> tuple[str | None, int | None, str | None]:
    """File and line of the innermost frame outside torch and hookscope, and the outermost function of torch that it called."""
    function = None
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(TORCH):
            if "/nn/functional" in path or path.endswith("/functional.py"):
                function = frame.f_code.co_name
        elif path == EXAMPLE or not path.startswith((OURS, "<")):
            return path, frame.f_lineno, function
        frame = frame.f_back
    return None, None, function


def _op_name(func: Any) -> str:
    """`log` of `aten::log.default`."""
    schema = getattr(func, "_schema", None)
    return str(schema.name).rsplit("::", 1)[-1] if schema is not None else str(func)


def _is_view(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return schema is not None and any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def _writes(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return schema is None or any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)


def _operands(inputs: list[torch.Tensor]) -> tuple[Operand, ...]:
    return tuple(operand(i, t) for i, t in enumerate(inputs[:6]))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor) and t.layout == torch.strided and _floats(t)]


def _floats(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _any(found: list[Badness]) -> Badness:
    whole = FINE
    for one in found:
        whole = whole | one
    return whole
