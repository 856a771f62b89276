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


def owners_of(parameters: Iterable[nn.Parameter]) -> list[str]:
    """`Linear.weight` for each: class of the module that holds it, and its name there. One search through all objects, about 0.1 s."""
    names = {id(p): f"a parameter of shape {tuple(p.shape)}" for p in parameters}
    modules = (found for found in gc.get_objects() if issubclass(type(found), nn.Module))
    for module in modules:
        for name, value in module.__dict__.get("_parameters", {}).items():  # one that is just being made may have none yet
            if id(value) in names:
                names[id(value)] = f"{type(module).__name__}.{name}"
    return list(names.values())
