"""One forward of a model over a batch that leaves no trace: buffers, gradients and random states are afterwards what they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..._core._errors import AttachError, HookscopeError, UsageError
from ..._origin._forward import Randomness
from .._batch import Feed
from .._inner import inner, running_eagerly

Loss = Callable[[nn.Module, Any], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Side:
    """A model and what it is run on. `inner` is the user's own model, without compiler and data-parallel wrappers."""

    name: str
    model: nn.Module
    batch: Any
    loss_fn: Loss | None = None
    alone: bool = True  # the batch, and not the first of a loader

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise AttachError(f"{self.name} is a {type(self.model).__name__}, not a torch.nn.Module")

    @property
    def inner(self) -> nn.Module:
        return inner(self.model)

    @property
    def compiled(self) -> bool:
        """Whether a compiler has had its hands on the model or on a part of it."""
        return any("_orig_mod" in m._modules or m._compiled_call_impl is not None for m in self.model.modules())

    def run(self, *, eager: bool = True) -> torch.Tensor | Any:
        """The loss where there is a loss function, else the output; what cannot be run is told with its cause."""
        model = self.inner if eager else self.model
        stance = running_eagerly() if eager and self.compiled else nullcontext()
        with stance, torch.set_grad_enabled(self.loss_fn is not None):
            try:
                return self.loss_fn(model, self.batch) if self.loss_fn is not None else Feed(model).run(self.batch, alone=self.alone)
            except HookscopeError:
                raise
            except Exception as problem:
                what = "run loss_fn on" if self.loss_fn is not None else "take"
                kind = type(problem).__name__
                raise UsageError(f"{self.name}, a {type(model).__name__}, cannot {what} the batch: {kind}: {problem}") from problem


@contextmanager
def untouched(model: nn.Module, randomness: Randomness) -> Iterator[None]:
    """Begin with these random states; leave states, buffers and mode as they were before."""
    slots = [(m._buffers, name, b, b.detach().clone()) for m in model.modules() for name, b in m._buffers.items() if b is not None]
    modes = [(m, m.training) for m in model.modules()]
    before = Randomness.now()
    randomness.restore()
    try:
        yield
    finally:
        before.restore()
        for module, mode in modes:
            if module.training is not mode:
                module.training = mode
        with torch.no_grad():
            for holder, name, buffer, value in slots:
                holder[name] = buffer
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
