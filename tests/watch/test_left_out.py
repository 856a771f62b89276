"""Steps that are left out go by without a detour; whatever else happens in them is told as where every step is recorded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._watch import _pace

STEPS, FIRST = 24, 3
X = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
Step = Callable[[int], None]


@pytest.fixture(autouse=True)
def _thrifty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pace, "OPENING_S", 0.0)
    monkeypatch.setattr(_pace.Pace, "_decide", lambda self, step: step < FIRST or step <= self._until)


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


def run(loop: Callable[[nn.Module, torch.optim.Optimizer], Step], **how: object) -> tuple[dict[str, object], list[torch.Tensor]]:
    model = net()
    step = loop(model, torch.optim.SGD(model.parameters(), lr=0.01))
    with hs.watch(model, on_finding="ignore", **how) as w:  # type: ignore[arg-type]
        for number in range(STEPS):
            step(number)
    closed = w.run.events[-1]
    assert [event for event in w.run.events if event["event"] == "switched_off"] == []
    told = {name: closed[name] for name in ("steps", "optimizer_steps")}
    told["skipped"] = [event["step"] for event in w.run.events if event["event"] == "skipped"]
    return told, [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("loop", LOOPS)
def test_steps_are_counted_as_where_all_are_recorded(loop: Callable[[nn.Module, torch.optim.Optimizer], Step]) -> None:
    few, weights = run(loop)
    all_, same = run(loop, every=1)
    assert few == all_
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))


def test_a_weight_that_is_spoiled_between_two_steps_is_named() -> None:
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    with hs.watch(model, sgd, on_finding="ignore") as w:
        for number in range(STEPS):
            if number == 15:
                with torch.no_grad():
                    model[2].bias.fill_(float("nan"))  # type: ignore[index,operator,union-attr]
            ordinary(model, sgd)(number)
    (event,) = [event for event in w.run.events if event["event"] == "written_between_steps"]
    assert (event["step"], event["parameters"], event["how"]) == (15, ["2.bias"], "in place")


def test_an_optimizer_that_writes_as_ever_is_nobody_else() -> None:
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    target = X.sum(1, keepdim=True)
    with hs.watch(model, sgd, on_finding="ignore") as w:
        for number in range(STEPS):
            sgd.zero_grad()
            loss = (model(X) - target).square().mean()
            (loss * (float("nan") if number == 15 else 1.0)).backward()
            sgd.step()
    assert [event for event in w.run.events if event["event"] == "written_between_steps"] == []


def test_the_hooks_are_on_again_in_the_step_that_is_recorded_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pace.Pace, "_decide", lambda self, step: step % 8 == 0)
    model = net()
    step = ordinary(model, torch.optim.SGD(model.parameters(), lr=0.01))
    with hs.watch(model, on_finding="ignore") as w:
        for number in range(STEPS):
            step(number)
    assert w.run["0:output", "rms"].steps.tolist() == [0, 8, 16]
    assert w.run["0.weight:update", "rms"].steps.tolist() == [0, 8, 16]
