"""Operations of ours that no mode and no tensor subclass of the user's program sees."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

_NOTHING = nullcontext()
_function_modes, _dispatch_modes = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
_tracing = torch._C._get_tracing_state
_graph_task, _level = torch._C._current_graph_task_id, torch._C._functorch.maybe_current_level

# What is_special() asks, in the order in which C asks it (_watch/_native.c).
QUESTIONS = (torch.is_grad_enabled, _function_modes, _dispatch_modes, _graph_task, _level)


def unseen() -> AbstractContextManager[Any]:
    """Selective checkpointing hands what it has seen in the first pass to the second one, operation by operation, and `make_fx` writes
    down all it sees: one more by a hook would give wrong values there, and a longer graph here.
    """
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else _NOTHING


def unnoticed(action: Callable[..., None], *args: Any) -> None:
    """Call `action` so that neither a tensor subclass nor a mode of the user's sees what it does."""
    if args and type(args[-1]) is torch.Tensor and not (_function_modes() or _dispatch_modes()):  # what a module returns, most often
        action(*args)
    else:
        with torch._C.DisableTorchFunction(), unseen():
            action(*args)


def is_transformed() -> bool:
    """Whether what runs is inside a transform of torch.func, where a tensor stands for many."""
    return _level() is not None


def is_traced() -> bool:
    """Whether torch.jit.trace notes what runs."""
    return _tracing() is not None


def is_special() -> bool:
    """Whether what runs is without grad, within a backward, or looked at by a mode or a transform."""
    return not torch.is_grad_enabled() or bool(_function_modes() or _dispatch_modes()) or _graph_task() != -1 or _level() is not None
