"""A small training from a fixed seed, and what it leaves behind: for tests of what happens around a watch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import hookscope as hs

BATCH = 8


def mlp(*between: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), *(between or (nn.ReLU(),)), nn.Linear(8, 1))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def batch(step: int) -> torch.Tensor:
    return torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(step))


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = 6,
    *,
    loss: Callable[[torch.Tensor], torch.Tensor] = lambda y: (y - 1).square().mean(),
    data: Callable[[int], torch.Tensor] = batch,
    before_step: Callable[[int], object] = lambda step: None,
) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        loss(model(data(step))).backward()
        before_step(step)
        optimizer.step()


def bits(model: nn.Module) -> list[bytes]:
    return [bytes(p.detach().reshape(-1).view(torch.uint8).numpy()) for p in model.parameters()]


def trained_bits(make: Callable[[], nn.Module] = mlp, steps: int = 6) -> list[bytes]:
    """Of the same training, unwatched."""
    model = make()
    train(model, adam(model), steps)
    return bits(model)


def hooks_on(*models: nn.Module) -> int:
    """How many hooks of any kind sit on the modules and parameters."""
    on_modules = (module for model in models for module in model.modules())
    dicts = [d for m in on_modules for d in (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)]
    parameters = [p for model in models for p in model.parameters() if not nn.parameter.is_lazy(p)]
    return sum(map(len, dicts)) + sum(len(p._backward_hooks or ()) + len(p._post_accumulate_grad_hooks or ()) for p in parameters)


@contextmanager
def told(category: type[Warning] = hs.HookscopeWarning) -> Iterator[list[warnings.WarningMessage]]:
    """The warnings given inside, each time they are given; one of another category is an error."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        yield given
    assert [str(w.message) for w in given if not issubclass(w.category, category)] == []


def events(run: hs.Run, name: str) -> list[dict[str, Any]]:
    return [event for event in run.events if event["event"] == name]
