"""What happens in the process that no module hook sees: backward passes, optimizer attempts, steps skipped by a GradScaler.

While at least one listener is subscribed, `torch.autograd.backward` and `Tensor.backward` (which calls it), `scale` and `step` of
`GradScaler` are wrapped and two global optimizer hooks are in place; when the last listener leaves, all of it is undone. A wrapper that
someone else has wrapped in the meantime cannot be taken out; it stays and does nothing.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ._listener import Backward, Listener, Shortcut


class _OwnToThread(threading.local):
    """What one thread has done since its last backward, and whether it is in one."""

    def __init__(self) -> None:
        self.attempts = 0
        self.in_backward = False
        self.scaled: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = []  # losses, and their factors


class _Wiring:
    """The one set of global hooks of this process."""

    def __init__(self) -> None:
        self.listeners: list[weakref.ref[Listener]] = []
        self.heard: list[weakref.ref[Listener]] | None = None  # the listeners whose `shortcut` this is
        self.shortcut: weakref.ref[Shortcut] | None = None
        self.stepping: dict[int, FrameType] = {}  # optimizer -> torch's frame of its outermost step()
        self.own = _OwnToThread()
        self.inside = 0
        self.undo: list[Callable[[], None]] = []

    def __iter__(self) -> Iterator[Listener]:
        return iter([found for ref in list(self.listeners) if (found := ref()) is not None])

    def listen(self, listeners: list[weakref.ref[Listener]]) -> None:
        """From now on to these."""
        self.listeners = self.heard = listeners
        only = listeners[0]() if len(listeners) == 1 else None
        self.shortcut = None if only is None or only.shortcut is None else weakref.ref(only.shortcut)

    @contextmanager
    def dispatching(self) -> Iterator[_Wiring]:
        self.inside += 1
        try:
            yield self
        finally:
            self.inside -= 1

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        # A subclass that calls super().step() comes by twice: the inner call is the one whose outer one is still on the stack.
        # (A counter would not do: a step that raises never comes to its post-hook.)
        frame = sys._getframe(1)
        if (outer := self.stepping.get(id(optimizer))) is not None and _runs_within(frame, outer):
            return None
        self.stepping[id(optimizer)] = frame
        self.own.attempts += 1
        if self.shortcut is not None and len(args) == 1 and not kwargs and self.heard is self.listeners:
            short = self.shortcut()
            if short is not None and short.attempt_begins(optimizer):
                return None
        with self.dispatching():
            for listener in self:
                listener.attempt_begins(optimizer, _has_closure(args, kwargs))
        if _has_closure(args, kwargs) and any(listener.hears_closures for listener in self):
            return _told_of_closure(args, kwargs, lambda: self.evaluated(optimizer))
        return None

    def evaluated(self, optimizer: torch.optim.Optimizer) -> None:
        for listener in self:
            if listener.hears_closures:
                listener.evaluated(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        # Not known at all: the step had begun before anybody listened.
        if self.stepping.get(id(optimizer), frame := sys._getframe(1)) is not frame:
            return
        self.stepping.pop(id(optimizer), None)
        short = self.shortcut() if self.shortcut is not None and self.heard is self.listeners else None
        if short is not None and short.attempt_ends(optimizer):
            return
        with self.dispatching():
            for listener in self:
                listener.attempt_ends(optimizer, _has_closure(args, kwargs))

    def connect(self) -> None:
        hooks = register_optimizer_step_pre_hook(self.before_step), register_optimizer_step_post_hook(self.after_step)
        self.undo = [hook.remove for hook in hooks]
        self.undo.append(_wrap(torch.autograd, "backward", _around_backward))
        self.undo.append(_wrap(torch.Tensor, "backward", _before_backward))
        self.undo.append(_wrap(torch.amp.GradScaler, "scale", _around_scaler_scale))
        self.undo.append(_wrap(torch.amp.GradScaler, "step", _around_scaler_step))

    def disconnect(self) -> None:
        # Removing a global optimizer hook while torch iterates over them raises in the user's step: it stays, inert, till the next
        # backward.
        if not self.inside:
            while self.undo:
                self.undo.pop()()
            self.stepping.clear()
            self.own.scaled.clear()


_wiring = _Wiring()


def subscribe(listener: Listener) -> Callable[[], None]:
    """Tell `listener` (held weakly) of every event until the returned function is called."""
    ref = weakref.ref(listener)
    _wiring.listen([*_wiring.listeners, ref])
    if not _wiring.undo:
        _wiring.connect()

    def unsubscribe() -> None:
        if ref in _wiring.listeners:
            _wiring.listen([other for other in _wiring.listeners if other is not ref])
        if not _wiring.listeners:
            _wiring.disconnect()

    return unsubscribe


def is_stepping(optimizer: torch.optim.Optimizer) -> bool:
    """Whether this is called from within `optimizer.step`."""
    return _runs_within(sys._getframe(), _wiring.stepping.get(id(optimizer)))


def _has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    # torch passes its hooks the optimizer itself as the first argument of the step
    return (len(args) > 1 and args[1] is not None) or kwargs.get("closure") is not None


def _told_of_closure(args: tuple[Any, ...], kwargs: dict[str, Any], tell: Callable[[], None]) -> tuple[Any, Any]:
    """The arguments of `step`, with a closure that calls `tell` when it is done."""
    closure = kwargs["closure"] if kwargs.get("closure") is not None else args[1]

    @functools.wraps(closure)
    def told() -> Any:
        value = closure()
        tell()
        return value

    if kwargs.get("closure") is not None:
        return args, {**kwargs, "closure": told}
    return (args[0], told, *args[2:]), kwargs


def _runs_within(frame: FrameType | None, outer: FrameType | None) -> bool:
    while outer is not None and frame is not None:
        frame = frame.f_back
        if frame is outer:
            return True
    return False


def _wrap(owner: Any, name: str, around: Callable[..., Any]) -> Callable[[], None]:
    original, active, own, is_backward = getattr(owner, name), True, _wiring.own, name == "backward"

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not _wiring.listeners:
            _wiring.disconnect()
        if not active or not _wiring.listeners or (is_backward and own.in_backward):  # then it is part of that one
            return original(*args, **kwargs)
        return around(original, *args, **kwargs)

    setattr(owner, name, wrapper)

    def undo() -> None:
        nonlocal active
        active = False  # inside someone else's wrapper it stays, also when another one is put around that
        if getattr(owner, name) is wrapper:
            setattr(owner, name, original)

    return undo


def _around_backward(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    roots = args[0] if args else kwargs.get("tensors")
    # Inside another backward: part of that one. (`in_backward`: the same once more, since a mode of the user's has had it first.)
    if torch._C._current_graph_task_id() != -1 or torch.compiler.is_compiling():
        return original(*args, **kwargs)
    tensors = (roots,) if isinstance(roots, torch.Tensor) else tuple(r for r in roots or () if isinstance(r, torch.Tensor))
    backward = Backward(tensors, _scale_of(tensors), bool(kwargs.get("create_graph", args[3] if len(args) > 3 else False)))
    for listener in _wiring:
        listener.backward_begins(backward)
    failed, _wiring.own.in_backward = True, True
    try:
        original(*args, **kwargs)
        failed = False
    finally:
        _wiring.own.in_backward = False
        for listener in _wiring:
            listener.backward_ends(failed)


def _before_backward(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    wiring, own = _wiring, _wiring.own
    if wiring.shortcut is not None and wiring.heard is wiring.listeners and not own.scaled:
        short = wiring.shortcut()
        if short is not None and len(args) == 1 and not kwargs and short.backward_begins(args[0]):
            failed, own.in_backward = True, True
            try:
                original(*args)
                failed = False
            finally:
                own.in_backward = False
                if failed or not short.backward_ends():
                    for listener in wiring:
                        listener.backward_ends(failed)
            return None
    if not torch.compiler.is_compiling():
        for listener in _wiring:
            listener.backward_nears()
    return original(*args, **kwargs)


def _scale_of(roots: tuple[torch.Tensor, ...]) -> torch.Tensor | None:
    """The factor of the loss that backward starts from; of one made from scaled losses, if they all have the same."""
    scaled, _wiring.own.scaled = _wiring.own.scaled, []
    for ref, scale in scaled:
        if any(ref() is root for root in roots):
            return scale
    return scaled[0][1] if len({id(scale) for _, scale in scaled}) == 1 else None


def _around_scaler_scale(original: Callable[..., Any], scaler: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(scaler, outputs, *args, **kwargs)
    scale = getattr(scaler, "_scale", None)
    if isinstance(scale, torch.Tensor):
        found = [result] if isinstance(result, torch.Tensor) else result if isinstance(result, (list, tuple)) else []
        _wiring.own.scaled += [(weakref.ref(tensor), scale) for tensor in found if isinstance(tensor, torch.Tensor)]
        del _wiring.own.scaled[:-64]  # a loop that scales and never goes backward
    return result


def _around_scaler_step(original: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    before = _wiring.own.attempts
    result = original(scaler, optimizer, *args, **kwargs)
    if _wiring.own.attempts == before and isinstance(optimizer, torch.optim.Optimizer):
        for listener in _wiring:
            listener.attempt_skipped(optimizer)
    return result
