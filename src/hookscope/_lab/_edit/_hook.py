"""A hook that may replace what it is given, acts before every other hook, and is inert in every copy of the module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..._core._errors import UsageError
from ..._taps._hook import Hook


class EditHook(Hook):
    """Calls `action` and hands on what it returns."""

    __slots__ = ()

    action: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        if torch.compiler.is_compiling():  # not traced: dynamo takes this for a reason to run the frame as it is, the hook included
            raise UsageError("an edit cannot be compiled: without fullgraph=True this part of the model runs uncompiled, as edited")
        return self.action(*args)


def before_forward(module: nn.Module, action: Callable[..., Any]) -> Callable[[], None]:
    """Call `action(module, args, kwargs)` before the forward; what it returns replaces both, unless it is None. Returns the removal."""
    handle = module.register_forward_pre_hook(EditHook(action), prepend=True, with_kwargs=True)
    _keep_order(module._forward_pre_hooks)
    return handle.remove


def after_forward(module: nn.Module, action: Callable[..., Any], *, always: bool = False) -> Callable[[], None]:
    """Call `action(module, args, kwargs, output)` after the forward; what it returns replaces the output, unless it is None."""
    handle = module.register_forward_hook(EditHook(action), prepend=True, with_kwargs=True, always_call=always)
    _keep_order(module._forward_hooks)
    return handle.remove


def _keep_order(hooks: Any) -> None:
    """A hook of ours was put first: those of earlier edits go before it, so that edits act in the order in which they were made."""
    _newest, *others = list(hooks)
    for key in reversed([key for key in others if isinstance(hooks[key], EditHook)]):
        hooks.move_to_end(key, last=False)
