"""A model that is afterwards what it was: buffers, random states, and the mode of every module."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_modes: dict[int, tuple[int, bool]] = {}  # by id: who is in here holds the modules
_lock = threading.Lock()


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
    """Every module in evaluation mode, and afterwards each in the mode it was in, a mix included.

    Where several do it at once, in threads or one inside the other, the last to end puts the modes back.
    """
    inside = list(model.modules())
    with _lock:
        for module in inside:
            users, training = _modes.get(id(module), (0, module.training))
            _modes[id(module)] = users + 1, training
    try:
        model.eval()
        yield
    finally:
        with _lock:
            for module in inside:
                users, training = _modes.pop(id(module))
                if users > 1:
                    _modes[id(module)] = users - 1, training
                else:
                    module.training = training
