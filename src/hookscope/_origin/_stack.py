"""The stack of function modes of the calling thread: whether there is room on it, and what is taken out of its middle."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

_push, _pop = torch._C._push_on_torch_function_stack, torch._C._pop_torch_function_stack
_depth, _mode_at = torch._C._len_torch_function_stack, torch._C._get_function_stack_at


def take_out(mode: TorchFunctionMode) -> bool:
    """Take a mode from the stack, wherever it is; whether it was there."""
    above = []
    while found := _depth() > 0:
        if (top := _pop()) is mode:
            break
        above.append(top)
    for other in reversed(above):
        _push(other)
    return found


def is_free(has_left: Callable[[object], bool]) -> bool:
    """Whether there is no mode but that of a default device, which knows how to get out from below; those that have left are taken out."""
    for mode in [_mode_at(place) for place in range(_depth())]:
        if has_left(mode):
            take_out(mode)
    return not _depth() or (_depth() == 1 and isinstance(_mode_at(0), DeviceContext))
