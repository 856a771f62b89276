"""`find_nonfinite`: one batch, forward and backward, under the tracer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .._core._errors import AttachError, UsageError
from .._origin._facts import badness, came_in
from .._origin._forward import Buffers, Randomness
from .._origin._gradients import gradients_of
from .._origin._tracer import Tracer
from .._origin._verdict import Verdict
from .._origin._walk import origin
from .._taps._inventory import modules, parameters
from .._taps._leaves import leaves


def find_nonfinite(model: nn.Module, batch: Any, loss_fn: Callable[[nn.Module, Any], torch.Tensor]) -> Verdict | None:
    """The operation at which the first NaN or Inf of one batch is born, forward or backward; None where all is finite.

    `loss_fn(model, batch)` returns the loss, a tensor. It runs once, with gradients on and the model in the mode it is in, several times
    slower than by itself, most where operations are small; parameters' gradients, buffers and random states are afterwards what they were.
    The verdict names the operation, whether it was its forward or its backward, the module, file and line, the values that went in and the
    samples concerned. An infinity that was put there on purpose, as by a mask, is not blamed. Not seen: the inside of compiled and
    scripted code. What was bad before anything ran is told as op `input` or `parameter`. Raises `UsageError` where `loss_fn` returns no
    tensor.

    >>> import torch
    >>> from torch import nn
    >>> import hookscope as hs
    >>> model = nn.Linear(2, 1, bias=False)
    >>> verdict = hs.find_nonfinite(model, torch.zeros(3, 2), lambda model, x: model(x).sqrt().sum())
    >>> verdict.op, verdict.direction, verdict.result
    ('sqrt', 'backward', 'Inf')
    """
    if not isinstance(model, nn.Module):
        raise AttachError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    names = {id(named.module): named.path or "(root)" for named in modules(model)}
    inputs = [t for _, t in leaves(batch) if t.dim()]
    tracer = Tracer(names, int(inputs[0].shape[0]) if inputs else None)
    randomness, buffers = Randomness.now(), Buffers(model)
    buffers.take()
    try:
        with torch.enable_grad(), tracer:
            loss = loss_fn(model, batch)
            if not isinstance(loss, torch.Tensor):
                raise UsageError(f"loss_fn returned a {type(loss).__name__}, not a tensor: return the loss of the batch")
            bad = [loss] if badness(loss) else []
            wanted = [p for p in model.parameters() if p.requires_grad]
            if not bad and loss.grad_fn is not None and wanted:
                bad = [grad for grad in gradients_of([loss], [torch.ones_like(loss)], wanted, []) if badness(grad)]
    finally:
        buffers.put()
        randomness.restore()
    verdict = (origin(tracer.trace, bad) or _came_in(model, batch)) if bad else None
    return None if verdict is None else replace(verdict, outside=verdict.module is None)


def _came_in(model: nn.Module, batch: Any) -> Verdict | None:
    """What no operation has made was there before: in the batch, or in a parameter."""
    for path, tensor in leaves(batch):
        if badness(tensor):
            batch_size = int(tensor.shape[0]) if tensor.dim() else None
            return came_in(tensor, batch_size, because=f"the batch{path} held it before anything ran")
    for named in parameters(model):
        if badness(named.parameter):
            owner = named.owner or "(root)"
            because = f"the parameter {named.path} held it before anything ran"
            return replace(came_in(named.parameter, None, because=because), op="parameter", module=owner)
    return None
