"""Small training loops: the ordinary one, and others that now and then do something else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import nn

import hookscope as hs

STEPS = 24
X = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
Step = Callable[[int], None]
Loop = Callable[[nn.Module, torch.optim.Optimizer], Step]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def backward(model: nn.Module) -> None:
    (model(X) - X.sum(1, keepdim=True)).square().mean().backward()


class Refusing(torch.optim.SGD):
    """Raises, now and then."""

    calls = 0

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.calls += 1
        if self.calls == 9:
            raise ArithmeticError
        super().step()


def ordinary(model: nn.Module, sgd: torch.optim.Optimizer) -> Step:
    def step(_number: int) -> None:
        sgd.zero_grad()
        backward(model)
        sgd.step()

    return step


def guarded(model: nn.Module, sgd: torch.optim.Optimizer) -> Step:
    """Its loop leaves out some of the steps."""

    def step(number: int) -> None:
        sgd.zero_grad()
        backward(model)
        if number % 5 != 4:
            sgd.step()

    return step


def accumulating(model: nn.Module, sgd: torch.optim.Optimizer) -> Step:
    """Only in some of the steps."""

    def step(number: int) -> None:
        sgd.zero_grad()
        for _ in range(2 if number % 4 == 3 else 1):
            backward(model)
        sgd.step()

    return step


def in_place(model: nn.Module, sgd: torch.optim.Optimizer) -> Step:
    """Gradients are made zero, not taken away."""

    def step(_number: int) -> None:
        sgd.zero_grad(set_to_none=False)
        backward(model)
        sgd.step()

    return step


def two_in_turn(model: nn.Module, sgd: torch.optim.Optimizer) -> Step:
    """Another optimizer comes by in some of the steps."""
    other = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(number: int) -> None:
        for optimizer in [sgd, other] if number % 6 == 5 else [sgd]:
            optimizer.zero_grad()
            backward(model)
            optimizer.step()

    return step


def failing(model: nn.Module, _sgd: torch.optim.Optimizer) -> Step:
    refusing = Refusing(model.parameters(), lr=0.01)

    def step(_number: int) -> None:
        refusing.zero_grad()
        backward(model)
        with suppress(ArithmeticError):
            refusing.step()

    return step


def growing(model: nn.Module, sgd: torch.optim.Optimizer) -> Step:
    """Its optimizer is given more to do."""

    def step(number: int) -> None:
        if number == 12:
            extra = nn.Linear(1, 1)
            model.append(extra)  # type: ignore[operator]
            sgd.add_param_group({"params": list(extra.parameters())})
        sgd.zero_grad()
        backward(model)
        sgd.step()

    return step


LOOPS = [ordinary, guarded, accumulating, in_place, two_in_turn, failing, growing]


def run(loop: Loop, **how: object) -> tuple[dict[str, object], list[torch.Tensor]]:
    """What a watch tells of the steps of 24 rounds, and the weights after them."""
    model = net()
    step = loop(model, torch.optim.SGD(model.parameters(), lr=0.01))
    with hs.watch(model, on_finding="ignore", **how) as w:  # type: ignore[arg-type]
        for number in range(STEPS):
            step(number)
    assert [event for event in w.run.events if event["event"] == "switched_off"] == []
    told = {name: w.run.events[-1][name] for name in ("steps", "optimizer_steps")}
    told["skipped"] = [event["step"] for event in w.run.events if event["event"] == "skipped"]
    return told, [p.detach() for p in model.parameters()]
