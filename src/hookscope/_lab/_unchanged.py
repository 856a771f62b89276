"""A model that is afterwards what it was: buffers, random states, and the mode of every module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Buffers (the running statistics of a batch norm in training mode) and random states are afterwards what they were."""
    saved = [(m, name, buffer, buffer.clone()) for m in model.modules() for name, buffer in m._buffers.items() if buffer is not None]
    devices = {tensor.device for tensor in model.parameters() if tensor.device.type != "cpu"}
    with torch.random.fork_rng([d.index for d in devices if d.type == "cuda"]):
        try:
            yield
        finally:
            with torch.no_grad():
                for module, name, buffer, value in saved:
                    module._buffers[name] = buffer
                    buffer.copy_(value)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode, and afterwards each in the mode it was in, a mix included."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training
