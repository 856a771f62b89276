"""What functions return that are no modules, such as a softmax, named by the module that calls them and their own name.

A function that torch itself writes in Python, as `multi_head_attention_forward`, is seen from outside only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..._taps._hook import Hook
from ..._taps._inventory import NamedModule
from ..._taps._leaves import leaves

Told = Callable[[NamedModule, str, list[tuple[str, torch.Tensor]]], None]


class Functions(TorchFunctionMode):
    """While it is entered, `told` hears of every function that returns tensors."""

    def __init__(self, inside: Sequence[NamedModule], told: Told) -> None:
        super().__init__()
        self._inside, self._told = inside, told
        self._root = next(named for named in inside if not named.path)
        self._stack: list[NamedModule] = []
        self._telling = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = function_name(func)
        if name and not self._telling and torch._C._current_graph_task_id() < 0:
            self._telling = True
            try:
                self._told(self._stack[-1] if self._stack else self._root, name, leaves(result))
            finally:
                self._telling = False
        return result

    def attach(self) -> Callable[[], None]:
        """Follow which module is under way; the returned function ends it."""
        with ExitStack() as undo:
            for named in self._inside:
                undo.callback(named.module.register_forward_pre_hook(Hook(self._pusher(named))).remove)
                undo.callback(named.module.register_forward_hook(Hook(self._left), always_call=True).remove)
            return undo.pop_all().close

    def begin(self) -> None:
        """No module is under way."""
        self._stack.clear()

    def _pusher(self, named: NamedModule) -> Callable[..., None]:
        def push(_module: nn.Module, _args: Any) -> None:
            self._stack.append(named)

        return push

    def _left(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        if self._stack:
            self._stack.pop()


def function_name(func: Any) -> str:
    """`softmax` for the function, the method and what an operator calls; `""` for what reads or sets an attribute."""
    name: str = getattr(func, "__name__", "")
    return (
        ""
        if name in ("__get__", "__set__", "__delete__")
        else name.strip("_") + ("_" if name.endswith("_") and not name.endswith("__") else "")
    )
