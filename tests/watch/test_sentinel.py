"""What calls for an alarm in steps that are left out, and what does not, however a healthy loss goes up and down."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._watch import _pace
from hookscope._watch._pace import Pace
from hookscope._watch._sentinel import GRADIENT, LARGE, LOSS, OUTPUT, Sentinel

STEPS, BAD = 60, 45


def row(value: float) -> list[float]:
    """The stats of one value."""
    nan, inf = float(math.isnan(value)), float(math.isinf(value))
    kept = 0.0 if nan or inf else value
    return [1.0, nan, inf, float(value == 0), kept, kept**2, value, value]


def alarms(losses: list[float]) -> int:
    """How many of these losses, one after another beside steady gradients, call for one."""
    sentinel, count = Sentinel(), 0
    for loss in losses:
        count += not sentinel.calm([row(loss)], [row(1.0)], 1.0)
        sentinel.went_by([row(loss)], 1.0)
    return count


RNG = np.random.default_rng(0)
HEALTHY = {
    "begins near 0": [0.001, *RNG.normal(1, 0.1, 2000)],
    "changes its sign": [*RNG.normal(0, 1, 2000)],
    "is a divergence that grows from 0": [*np.linspace(0, 2, 2000)],
    "grows slowly": [*(0.01 * 1.01 ** np.arange(1000))],
    "falls": [*np.exp(-np.arange(2000) / 200)],
    "is a game": [*(1 + 0.8 * np.sin(np.arange(2000) / 30))],
    "is always 0 but for a few": [*(RNG.random(2000) < 0.01).astype(float)],
    "has a long tail": [*RNG.lognormal(0, 1, 2000)],
}


@pytest.mark.parametrize("losses", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_loss_calls_for_an_alarm_in_less_than_one_step_in_a_hundred(losses: list[float]) -> None:
    assert alarms(losses) < len(losses) / 100


@pytest.mark.parametrize("sign", [1, -1])
def test_a_loss_that_leaps_out_of_what_it_was_calls_for_one(sign: int) -> None:
    assert alarms([*RNG.normal(0, 1, 200), sign * 100.0]) == 1
    assert alarms([0.001, *RNG.normal(1, 0.1, 200), 30.0]) == 1


def test_one_large_loss_does_not_hide_the_next() -> None:
    assert alarms([*RNG.normal(1, 0.1, 100), 1000.0, *RNG.normal(1, 0.1, 20), 30.0]) == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_calls_for_one_and_says_nothing_of_what_is_usual(value: float) -> None:
    sentinel = Sentinel()
    for _ in range(80):
        assert not sentinel.calm([row(value)], [row(1.0)], 1.0)
        assert sentinel.causes([row(value)], [row(1.0)], 1.0) == {LOSS}
        sentinel.went_by([row(value)], 1.0)
    assert sentinel.calm([row(5.0)], [row(1.0)], 1.0)
    assert sentinel.causes([row(5.0)], [row(value)], 1.0) == {OUTPUT}


@pytest.fixture
def _saving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pace, "OPENING_S", 0.0)
    monkeypatch.setattr(Pace, "_decide", lambda self, step: step < 1 or step <= self._until)


def through_log(loss: torch.Tensor, _output: torch.Tensor) -> torch.Tensor:
    return loss + torch.log(-1 - loss.detach())


def all_bad(_loss: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    return torch.log(-1 - output.square()).mean()


def only_the_gradient(loss: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    output.register_hook(lambda grad: grad * math.nan)  # type: ignore[no-untyped-call]
    return loss


def train(
    fault: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], size: Callable[[int], float], heard: str, every: int | None
) -> hs.Watch:
    """A loss of that `size` at each step, the fault at one of them, and no step that moves the weights."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with hs.watch(model, optimizer, on_finding=heard, every=every) as watch:
        for step in range(STEPS):
            optimizer.zero_grad()
            output = model(torch.randn(16, 4))
            loss = output.square().mean() * size(step)
            (fault(loss, output) if step == BAD else loss).backward()
            if step == BAD:
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad.zero_()
            optimizer.step()
    return watch


SIZES: dict[str, Callable[[int], float]] = {
    "begins small": lambda step: 0.01 if step == 0 else 1.0,
    "leaps from step to step": lambda step: 1.0 if step < 20 else 3.0 ** (step - 20),
}


@pytest.mark.usefixtures("_saving")
@pytest.mark.parametrize("fault", [through_log, all_bad, only_the_gradient])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_what_is_not_finite_is_recorded_and_told_however_large_the_loss_has_been(
    fault: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], size: Callable[[int], float]
) -> None:
    watch = train(fault, size, "ignore", None)
    assert BAD in watch.run.steps.tolist()
    wanted = train(fault, size, "ignore", 1).findings
    rule = next(f.rule for f in wanted if f.rule.startswith("nonfinite"))
    assert rule in [f.rule for f in watch.findings if f.first_step == BAD]
    with pytest.raises(hs.FindingError, match=f"step {BAD}"):
        train(fault, lambda _step: 1.0, "raise", None)


@pytest.mark.usefixtures("_saving")
def test_an_output_that_is_never_finite_hides_no_bad_gradient() -> None:
    pace = Pace(None, 0.02, lambda: 0)
    pace.recorded(0)
    for step in range(100):
        pace.alarm(step, {OUTPUT})
    assert not pace.recorded(99)
    pace.alarm(99, {OUTPUT, GRADIENT})
    assert pace.recorded(99)


@pytest.mark.usefixtures("_saving")
def test_what_is_not_finite_at_every_step_is_heeded_ever_more_seldom() -> None:
    pace = Pace(None, 0.02, lambda: 0)
    for step in range(2000):
        pace.recorded(step)
        pace.alarm(step, {LARGE, GRADIENT})
    assert 1 < pace.alarms < 10
