"""Optimizers that step another one inside are one optimizer: its gradients are those that were used, its update is the whole change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

import hookscope as hs
from hookscope._watch._attempt import Attempt

from ._small import batch, bits, mlp

WEIGHT = "0.weight"
STEPS = 4
Norms = list[float]


def norm(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.detach().double()))


class Outer(Optimizer):
    """Notes the gradient of the first parameter as its `base` gets it, and what a whole step changes."""

    def __init__(self, model: nn.Module, **base: Any) -> None:
        super().__init__(model.parameters(), {"lr": 0.1})
        self.base = SGD(self.param_groups, lr=0.1, **base)
        self.first: torch.Tensor = self.param_groups[0]["params"][0]
        self.used: Norms = []
        self.changed: Norms = []

    def parameters(self) -> list[nn.Parameter]:
        return self.param_groups[0]["params"]  # type: ignore[no-any-return]

    def inner(self) -> None:
        assert self.first.grad is not None
        self.used.append(norm(self.first.grad))
        self.base.step()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        before = self.first.detach().double().clone()
        self.whole(closure)
        self.changed.append(norm(self.first.double() - before))

    def whole(self, closure: Any) -> None:
        raise NotImplementedError


class Lookahead(Outer):
    """Every second step goes half of the way back."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.slow = [p.detach().clone() for p in self.parameters()]

    @torch.no_grad()
    def whole(self, closure: Any) -> None:
        self.inner()
        if len(self.used) % 2 == 0:
            for parameter, slow in zip(self.parameters(), self.slow, strict=True):
                parameter.copy_(slow.lerp_(parameter, 0.5))


class Sharpness(Outer):
    """Sharpness-aware minimisation: the gradient is taken a little up the hill, the weights go back, and the base steps from there."""

    def whole(self, closure: Any) -> None:
        with torch.no_grad():
            kept = [p.detach().clone() for p in self.parameters()]
            for parameter in self.parameters():
                parameter.add_(parameter.grad, alpha=0.05)  # type: ignore[arg-type]  # it is there
        self.zero_grad()
        closure()
        with torch.no_grad():
            for parameter, old in zip(self.parameters(), kept, strict=True):
                parameter.copy_(old)
        self.inner()
        self.zero_grad()


class Clipping(Outer):
    """Clips within its step."""

    def whole(self, closure: Any) -> None:
        nn.utils.clip_grad_norm_(self.parameters(), 0.01)
        self.inner()


def train(make: Callable[[nn.Module], Outer], model: nn.Module) -> Outer:
    optimizer = make(model)
    for number in range(STEPS):
        x = batch(number)

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            loss: torch.Tensor = (model(x) - 1).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.zero_grad()
        closure()
        optimizer.step(closure)
    return optimizer


@pytest.mark.parametrize("make", [Lookahead, Sharpness, Clipping])
def test_an_optimizer_around_another_makes_one_step_with_the_gradient_used_and_the_whole_change(make: Callable[[nn.Module], Outer]) -> None:
    alone, model = mlp(), mlp()
    expected = train(make, alone)
    with hs.watch(model, updates="full") as w:
        train(make, model)
    assert bits(model) == bits(alone)
    assert w.run.steps.tolist() == list(range(STEPS))
    assert w.run[f"{WEIGHT}:param_grad", "l2"].values.tolist() == pytest.approx(expected.used, rel=1e-6)
    assert w.run[f"{WEIGHT}:update", "l2"].values.tolist() == pytest.approx(expected.changed, rel=1e-6)
    assert [site.name for site in w.run.sites if site.name.startswith("lr")] == ["lr"]


def test_what_an_optimizer_clips_within_its_step_is_told() -> None:
    model = mlp()
    with hs.watch(model) as w:
        train(Clipping, model)
    before = w.run.matrix(w.run.sites.select("**:param_grad/preclip"), "l2").values
    factors = 0.01 / (before**2).sum(axis=1) ** 0.5
    assert w.run["clip"].values.tolist() == pytest.approx(factors.tolist(), rel=1e-4)


def test_an_optimizer_made_of_several_has_their_learning_rates_where_it_has_none() -> None:
    class Both(Optimizer):
        def __init__(self, model: nn.Sequential) -> None:
            super().__init__(model.parameters(), {})
            self.parts = [SGD(model[0].parameters(), lr=0.1), Adam(model[2].parameters(), lr=0.01)]

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for part in self.parts:
                part.step()

    model = mlp()
    optimizer = Both(model)
    with hs.watch(model, optimizer) as w:
        for number in range(2):
            optimizer.zero_grad()
            model(batch(number)).square().mean().backward()
            optimizer.step()
    assert w.run.steps.tolist() == [0, 1]
    assert [w.run[name].values.tolist() for name in ("lr", "lr.1")] == [[0.1, 0.1], [0.01, 0.01]]


def test_a_step_that_raised_holds_nobody_up() -> None:
    model, attempt = mlp(), Attempt()
    optimizer = SGD(model.parameters(), lr=0.1)
    attempt.begin(optimizer, {WEIGHT})
    assert attempt
    assert attempt.around({WEIGHT}) is None  # nobody is within that step any more
    attempt.end()
    assert not attempt
