"""Which forward is run again: with several losses, adversaries, accumulation, checkpoints and autocast the right line is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hookscope as hs
from hookscope._core._finding import Finding

AT = 3


class Odd(nn.Module):
    """The logarithm of -1 in the forward, or the root of 0 in the backward, when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.how = nn.Linear(6, 6), ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        if self.how == "forward":
            h = h + torch.log(h * 0 - 1)  # here forward
        if self.how == "backward":
            h = h + torch.sqrt(h * 0)  # here backward
        return h


class Net(nn.Module):
    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.first, self.odd, self.last = nn.Linear(6, 6), Odd(), nn.Linear(6, 2)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        h = self.odd(h) if self.reentrant is None else checkpoint(self.odd, h, use_reentrant=self.reentrant)
        out: torch.Tensor = self.last(torch.tanh(h))
        return out


def found(models: nn.Module | dict[str, nn.Module], step: Callable[[int], None]) -> Finding:
    with hs.watch(models, on_finding="ignore") as w:
        for number in range(AT + 2):
            step(number)
    assert [event for event in w.run.events if event["event"] == "switched_off"] == []
    return hs.diagnose(w.run).findings[0]


def check(finding: Finding, how: str, module: str = "odd") -> None:
    op = {"forward": "log", "backward": "sqrt"}[how]
    assert (finding.rule, finding.module, finding.op, finding.first_step) == (f"nonfinite-{how}", module, op, AT), finding.headline
    assert finding.source is not None
    assert finding.source["code"].endswith(f"# here {how}")


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.01)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


HOWS = pytest.mark.parametrize("how", ["forward", "backward"])


@HOWS
@pytest.mark.parametrize("of", ["g", "d"])
def test_adversaries(how: str, of: str) -> None:
    g, d = Net(), nn.Sequential(nn.Linear(2, 6), Odd(), nn.Linear(6, 1))
    optimizers = sgd(g), sgd(d)
    odd = g.odd if of == "g" else d[1]

    def step(number: int) -> None:
        odd.how = how if number == AT else ""
        fake = g(torch.randn(5, 6))
        optimizers[1].zero_grad()
        (d(torch.randn(5, 2)).mean() - d(fake.detach()).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        d(fake).mean().backward()
        optimizers[0].step()

    finding = found({"g": g, "d": d}, step)
    check(finding, how, "g.odd" if of == "g" else "d.1")


@HOWS
@pytest.mark.parametrize("micro", [0, 2])
def test_accumulated_micro_batches(how: str, micro: int) -> None:
    model = Net()
    optimizer = sgd(model)

    def step(number: int) -> None:
        optimizer.zero_grad()
        for n in range(3):
            model.odd.how = how if (number, n) == (AT, micro) else ""
            model(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()

    check(found(model, step), how)


@HOWS
@pytest.mark.parametrize("second", [False, True])
def test_several_losses_with_a_backward_each(how: str, second: bool) -> None:
    model = Net()
    optimizer = sgd(model)

    def step(number: int) -> None:
        optimizer.zero_grad()
        model.odd.how = how if number == AT and not second else ""
        model(torch.randn(5, 6)).square().mean().backward()
        model.odd.how = how if number == AT and second else ""
        model(torch.randn(4, 6)).abs().mean().backward()
        optimizer.step()

    check(found(model, step), how)


def test_several_forwards_before_one_backward() -> None:
    model = Net()
    optimizer = sgd(model)

    def step(number: int) -> None:
        optimizer.zero_grad()
        one = model(torch.randn(5, 6)).square().mean()
        x = torch.randn(4, 6)
        x[2] = float("inf") if number == AT else 0.0
        (one + model(x).square().mean()).backward()
        optimizer.step()

    finding = found(model, step)
    assert (finding.rule, finding.first_step) == ("nonfinite-input", AT)


@HOWS
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(how: str, reentrant: bool) -> None:
    model = Net(reentrant)
    optimizer = sgd(model)

    def step(number: int) -> None:
        optimizer.zero_grad()
        model.odd.how = how if number == AT else ""
        model(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()

    check(found(model, step), how)


@HOWS
def test_autocast(how: str) -> None:
    model = Net()
    optimizer = sgd(model)

    def step(number: int) -> None:
        optimizer.zero_grad()
        model.odd.how = how if number == AT else ""
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(5, 6)).square().mean()
        loss.backward()
        optimizer.step()

    check(found(model, step), how)
