"""Parameters that a loss depends on, found by walking its graph: also those of modules that no model knows, as in a plain Python list."""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch
from torch import nn

MAX_NODES = 200_000


def parameters_behind(roots: Iterable[torch.Tensor]) -> list[nn.Parameter]:
    """The `nn.Parameter`s that gradients from `roots` will reach. Inputs that require grad are no parameters."""
    todo = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen: set[object] = set(todo)
    found: dict[int, nn.Parameter] = {}
    while todo and len(seen) < MAX_NODES:
        node = todo.pop()
        variable = getattr(node, "variable", None)  # of an AccumulateGrad node
        if isinstance(variable, nn.Parameter):
            found[id(variable)] = variable
        fresh = [following for following, _ in node.next_functions if following is not None and following not in seen]
        seen.update(fresh)
        todo += fresh
    return list(found.values())


def owner_of(parameter: nn.Parameter) -> str:
    """`Linear.weight`: class of the module that holds a parameter, and its name there; searches all objects, which takes a while."""
    for holder in gc.get_referrers(parameter):
        named = [name for name, value in holder.items() if value is parameter] if isinstance(holder, dict) else []
        owners = [m for m in gc.get_objects() if issubclass(type(m), nn.Module) and m._parameters is holder] if named else []
        if owners:
            return f"{type(owners[0]).__name__}.{named[0]}"
    return f"a parameter of shape {tuple(parameter.shape)}"
