"""Selective checkpointing around a compiled block: our operation is no matter of its policy.

The backends that run a graph as torch has made it functional (`aot_eager`) call an operation that writes through another one,
`auto_functionalized_v2`, of which the modes of selective checkpointing do not know what to do: an error, in the program's own training.
What they are told here is of our operation alone: to run it as any other, again in the backward, where it leaves nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import checkpoint


def admit() -> None:
    """Tell them, unless somebody has told them something already."""
    outer: Any = getattr(torch.ops.higher_order, "auto_functionalized_v2", None)
    for name in ("_CachingTorchDispatchMode", "_CachedTorchDispatchMode"):
        mode = getattr(checkpoint, name, None)
        if mode is not None and mode not in getattr(outer, "python_key_table", {mode: None}):
            outer.py_impl(mode)(_rule(outer, name))


def _rule(outer: Any, name: str) -> Callable[..., Any]:
    def run(_mode: Any, inner: Any, **given: Any) -> Any:
        if inner is torch.ops.hookscope.note.default:
            return outer(inner, **given)  # the mode is off meanwhile
        raise NotImplementedError(f"There was no rule registered for HigherOrderOperator auto_functionalized_v2 and mode {name}")

    return run
