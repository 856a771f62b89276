"""A hook on the gradient of a tensor that is never taken off: it goes with the tensor's graph.

`Tensor.register_hook` also makes a handle, which is most of its price, and asks for overrides of subclasses.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle


def hook_gradient(tensor: torch.Tensor, hook: Callable[[torch.Tensor | None], None]) -> None:
    """Call `hook` with the gradient of `tensor`, which has a graph behind it, when it arrives."""
    node = tensor.grad_fn
    if type(tensor) is not torch.Tensor or node is None:
        tensor.register_hook(hook)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        return
    hooks: Any = tensor._backward_hooks
    if hooks is None:
        tensor._backward_hooks = hooks = OrderedDict()
        node._register_hook_dict(tensor)
    hooks[RemovableHandle.next_id] = hook
    RemovableHandle.next_id += 1
