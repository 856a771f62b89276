"""The gradients of parameters, computed without a trace on the parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


def gradients_of(
    roots: Sequence[torch.Tensor], given: Sequence[torch.Tensor], parameters: Sequence[nn.Parameter], notes: list[str]
) -> list[torch.Tensor]:
    """What a backward from `roots`, at which the gradients `given` arrive, brings to `parameters`; their own `.grad` stays what it is.

    Re-entrant checkpointing refuses `torch.autograd.grad`: there an ordinary backward is run, unless that would be noticed; `notes` say so.
    """
    if not _reentrant(roots):
        return [g for g in torch.autograd.grad(roots, parameters, given, allow_unused=True) if g is not None]
    if any(p._post_accumulate_grad_hooks for p in parameters):  # they would fire again: a step within backward, a reduction over ranks
        notes.append("the backward was not run again: parameters carry hooks of the program's own")
        return []
    if torch.distributed.is_available() and torch.distributed.is_initialized():  # the reducer's hooks lie where nobody can ask for them
        notes.append("the backward was not run again: it would be reduced over ranks once more")
        return []
    held = [p.grad for p in parameters]
    try:
        for parameter in parameters:
            parameter.grad = None
        torch.autograd.backward(roots, given)
        return [p.grad for p in parameters if p.grad is not None]
    finally:
        for parameter, gradient in zip(parameters, held, strict=True):
            parameter.grad = gradient


def _reentrant(roots: Sequence[torch.Tensor]) -> bool:
    todo = [t.grad_fn for t in roots if t.grad_fn is not None]
    seen: set[object] = set(todo)
    while todo:
        node = todo.pop()
        if node.name().startswith("CheckpointFunction"):
            return True
        fresh = [n for n, _ in node.next_functions if n is not None and n not in seen]
        seen.update(fresh)
        todo += fresh
    return False
