"""`edit`: interventions on what flows inside a model, undone exactly."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any

from torch import nn

from ..._core._errors import AttachError, HookscopeWarning
from ..._core._site import Kind
from ..._taps._inventory import NamedModule, modules, parameters
from .._turn import Turn
from ._editor import Editor, Guard, Spot
from ._hook import after_forward, before_forward
from ._layout import layout_of
from ._op import Op
from ._plan import Target, plan
from ._uncompiled import run_uncompiled


class Edit:
    """What `hookscope.edit` returns: a context manager, and a handle to `close`.

    `model` is the model; `counts` says how often ops have acted at each site so far.

    >>> import torch
    >>> import hookscope as hs
    >>> e = hs.edit(torch.nn.Identity(), {"(root)": hs.scale(2.0)})
    >>> e.model(torch.ones(1)), e.counts
    (tensor([2.]), {'(root):output': 1})
    >>> e.close()
    >>> e.model(torch.ones(1))
    tensor([1.])
    """

    def __init__(self, model: nn.Module, edits: Mapping[Any, Op | Iterable[Op]], *, turn: Turn | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise AttachError(f"model is a {type(model).__name__}, not a torch.nn.Module")
        self.model = model
        self._targets = plan(model, edits)
        self._editor = Editor(Guard(self.discard))
        with ExitStack() as undo:
            undo.callback(compiled_again := run_uncompiled())
            weakref.finalize(self, compiled_again)  # an edit may go with its model, never closed
            _attach(model, self._targets, self._editor, undo, turn)
            self._undo = undo.pop_all()
        self.closed = False

    @property
    def counts(self) -> dict[str, int]:
        """How often ops have acted, by site."""
        return dict(self._editor.counts)

    def close(self) -> None:
        """Take the edit off; a second time does nothing. Warns of ops that have never acted."""
        self._close(stacklevel=3)

    def __enter__(self) -> Edit:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._close(stacklevel=3)
        self.discard()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "on"
        return f"<hookscope edit of {len(self._targets)} site{'s' * (len(self._targets) != 1)} of {type(self.model).__name__}, {state}>"

    def _close(self, *, stacklevel: int) -> None:
        if not self.closed:
            self.discard()
            for text in self._complaints():
                warnings.warn(text, HookscopeWarning, stacklevel=stacklevel)

    def discard(self) -> None:
        """Take the edit off without a word about what has never acted."""
        self.closed = True
        self._undo.close()

    def _complaints(self) -> Iterator[str]:
        planned = {one.number: one.text for target in self._targets for one in target.planned}
        idle = [text for number, text in planned.items() if not self._editor.acted[number]]
        if idle:
            yield f"hookscope: {'; '.join(idle)} never acted: no such call, position or gradient came by while the edit was on"
        if self._editor.moments.waiting:
            yield (
                "hookscope: the edit is off before the backward of a checkpointed forward, which will run again unedited and give wrong "
                "gradients: close the edit after the backward"
            )


def edit(model: nn.Module, edits: Mapping[Any, Op | Iterable[Op]]) -> Edit:
    """Change what flows through chosen sites of a model, from now until the edit is closed.

    `edits` maps selections to an op, or a list of ops that act one after the other: `hs.zero()`, `hs.mean(...)`, `hs.scale(x)`,
    `hs.add(v)`, `hs.clamp(lo, hi)`, `hs.noise(std)`, `hs.patch(...)`, `hs.swap(order)`, `hs.project(directions)`, `hs.replace(fn)`,
    `hs.clip_norm(x)`, `hs.zero_nonfinite()`, each narrowed by `.at(...)` to units, heads, positions, calls or steps. A path without a kind
    means the output. Kinds:

    - `input`, `output`: what goes into a module, by position or by keyword, and what it returns. Of a structure the tensor on the output
      path is edited, `lstm:output[1][0]`; without one, the first of floating-point numbers. Everything else in it, and its types, stay.
    - `output_grad`: the gradient that comes to a module's output, as edited, and goes on from there into the module. A graph built under
      the edit keeps it.
    - `param_grad`: the gradient that one backward brings to a parameter, before it is added up, while the edit is on.

    The edit acts before every other hook of a module, which see the edited values, a watch's as well; several edits act in the order in
    which they were made. Nothing is written into a tensor of the program, dtypes stay, and gradients flow as through the same arithmetic
    in the model. What is compiled runs uncompiled while an edit is on; compiled with `fullgraph=True` only after the edit was made, it
    raises. A checkpointed forward is edited again in its recompute, in the same way: close the edit after the backward.

    Returns an `Edit`, already on. Raises `SelectionError` where a selection matches nothing, `UsageError` for what cannot be edited; an op
    that fails in a forward raises there, and takes the edit off. Closing warns of every op that has never acted.

    >>> import torch
    >>> from torch import nn
    >>> import hookscope as hs
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> with hs.edit(model, {"1": [hs.zero().at(units=0), hs.add(1.0)]}):
    ...     model(torch.zeros(1, 2))[0, 0].item()
    1.0
    """
    return Edit(model, edits)


def _attach(model: nn.Module, targets: list[Target], editor: Editor, undo: ExitStack, turn: Turn | None) -> None:
    by_module: dict[str, dict[Kind, Target]] = {}
    for target in targets:
        if target.site.kind != "param_grad":
            by_module.setdefault(target.site.path, {})[target.site.kind] = target
    named = {one.path: one for one in modules(model)}
    timed = {path for path, kinds in by_module.items() if any(target.timed for target in kinds.values())}
    for entry in sorted({way for path in timed for way in _ways_to(named[path])} & named.keys()):
        _count_forwards(named[entry].module, editor, undo, root=not entry, turn=turn)
    for path, kinds in by_module.items():
        module = named[path].module
        around = [named[way].module for way in reversed(_ancestors(path)) if way in named]
        spot = Spot(layout_of(module, around), kinds.get("input"), kinds.get("output"), kinds.get("output_grad"))
        if spot.input is not None:
            undo.callback(before_forward(module, _within(turn, partial(editor.before, spot))))
        if spot.output is not None or spot.gradient is not None:
            undo.callback(after_forward(module, _within(turn, partial(editor.after, spot))))
    _attach_to_parameters(model, [target for target in targets if target.site.kind == "param_grad"], editor, undo)


def _attach_to_parameters(model: nn.Module, targets: list[Target], editor: Editor, undo: ExitStack) -> None:
    tensors = {one.path: one.parameter for one in parameters(model)} if targets else {}
    for target in targets:
        tensor = tensors[target.site.path]
        if tensor.requires_grad:  # one that is frozen has no gradient; if that is all there is, the edit says so when it is closed
            undo.callback(tensor.register_hook(partial(editor.parameter_gradient, target, itertools.count())).remove)  # type: ignore[no-untyped-call]


def _count_forwards(module: nn.Module, editor: Editor, undo: ExitStack, *, root: bool, turn: Turn | None) -> None:
    moments = editor.moments
    undo.callback(before_forward(module, _within(turn, _silently(partial(moments.enter, root=root)))))
    undo.callback(after_forward(module, _within(turn, _silently(moments.leave)), always=True))


def _within(turn: Turn | None, action: Callable[..., Any]) -> Callable[..., Any]:
    """The action, in forwards that are meant alone, if any are."""
    return action if turn is None else lambda *args: action(*args) if turn.is_on() else None


def _silently(action: Callable[[], None]) -> Callable[..., None]:
    return lambda *_: action()


def _ways_to(named: NamedModule) -> set[str]:
    """The paths of a module and of all that it may be called through."""
    return {way for path in (named.path, *named.aliases) for way in (path, *_ancestors(path))}


def _ancestors(path: str) -> list[str]:
    """The paths above, outermost first."""
    parts = path.split(".") if path else []
    return [".".join(parts[:i]) for i in range(len(parts))]
