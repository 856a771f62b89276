"""Everything a training leaves behind, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from ._programs import Make, Training

STEPS = 6
Bits = dict[str, bytes | str]
Observer = Callable[[Training], AbstractContextManager[Any]]


def train(make: Make, observer: Observer = lambda training: nullcontext(), steps: int = STEPS) -> Bits:
    """Run a program from a fixed seed under an observer and return what it leaves."""
    torch.manual_seed(7)
    np.random.seed(8)  # noqa: NPY002  # the global generator is what must not be disturbed
    random.seed(9)
    training = make()
    with observer(training):
        printed = [str(training.step(step).tolist()) for step in range(steps)]
    return dict(left_behind(training)) | {"printed": " ".join(printed)}


def left_behind(training: Training) -> Iterator[tuple[str, bytes | str]]:
    """Parameters, gradients, buffers, states of optimizers, of the scaler and of all random generators, each by name."""
    for number, model in enumerate(training.models):
        for name, parameter in model.named_parameters():
            yield f"{number}.{name}", raw(parameter)
            yield f"{number}.{name}.grad", "none" if parameter.grad is None else raw(parameter.grad)
        for name, buffer in model.named_buffers():
            yield f"{number}.{name}", raw(buffer)
    for number, optimizer in enumerate(training.optimizers):
        yield from flat(f"optimizer {number}", optimizer.state_dict())
    yield from flat("scaler", training.scaler.state_dict() if training.scaler is not None else {})
    yield "rng of torch", raw(torch.get_rng_state())
    yield from flat("rng of numpy", np.random.get_state())  # noqa: NPY002  # see `train`
    yield "rng of python", str(random.getstate())


def flat(name: str, value: Any) -> Iterator[tuple[str, bytes | str]]:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        yield name, raw(torch.as_tensor(value))
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from flat(f"{name}.{key}", part)
    elif isinstance(value, (list, tuple)):
        for i, part in enumerate(value):
            yield from flat(f"{name}[{i}]", part)
    else:
        yield name, repr(value)


def raw(tensor: torch.Tensor) -> bytes:
    """The bytes themselves: NaNs count as equal only to themselves, and -0.0 is not 0.0."""
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


def differing(left: Bits, right: Bits) -> list[str]:
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
