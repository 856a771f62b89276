"""Finite values that are suddenly far larger than ever: the operation that made them so is noted, and named in findings about that step."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._watch import _locating
from hookscope._watch._locating import MAX_LEAPS

from ._nets import AT, JUMPS
from ._planting import Planted, plant, train


def noted(run: hs.Run) -> list[dict[str, Any]]:
    """The operations."""
    return [event for event in run.events if event["event"] == "origin"]


def right(planted: Planted, run: hs.Run) -> bool:
    fault = planted.fault
    assert fault is not None
    told = [(e["op"], e["direction"], e["module"], e["step"], fault.code in e["code"], e["exact"]) for e in noted(run)]
    return told == [(fault.op, fault.direction, planted.module, AT, True, True)]


def test_a_leap_is_noted_exactly_in_random_nets() -> None:
    nets = [plant(seed, "forward", JUMPS) for seed in range(8)]
    assert [right(planted, train(planted)) for planted in nets] == [True] * 8


@pytest.mark.slow
@pytest.mark.skipif("HOOKSCOPE_NETS" not in os.environ, reason="a minute long: HOOKSCOPE_NETS=1 plants all hundred")
def test_a_leap_is_noted_exactly_in_at_least_95_of_100_random_nets() -> None:
    nets = [plant(seed, "forward", JUMPS) for seed in range(100, 200)]
    assert sum(right(planted, train(planted)) for planted in nets) >= 95


def test_a_finding_about_that_step_names_the_operation() -> None:
    planted = plant(1, "forward", JUMPS[:1])
    found = hs.diagnose(train(planted, grad_norm_threshold=100.0), grad_norm_threshold=100.0).findings
    (finding,) = [one for one in found if one.first_step == AT and one.rule == "exploding-grad"]
    assert (finding.rule, finding.op, finding.module) == ("exploding-grad", "mul", planted.module)
    assert "mul made values 1e+04 times as large at _nets.py:" in finding.message
    assert finding.source is not None
    assert "* 1e4" in finding.source["code"]


Loss = Callable[[torch.Tensor, int], torch.Tensor]


def watched(*, loss: Loss, scale: Callable[[torch.Tensor, int], torch.Tensor] = lambda x, step: x, steps: int = 4) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    sgd = torch.optim.SGD(model.parameters(), lr=1e-12)
    with hs.watch(model, sgd, on_finding="ignore") as w:
        for step in range(steps):
            sgd.zero_grad()
            loss(model(scale(torch.ones(5, 4), step)), step).backward()
            sgd.step()
    assert [event for event in w.run.events if event["event"] == "switched_off"] == []
    return noted(w.run)


def plain(y: torch.Tensor, step: int) -> torch.Tensor:
    return y.square().sum()


def test_a_leap_of_the_loss_lies_outside_the_model() -> None:
    (event,) = watched(loss=lambda y, step: plain(y, step) * (1e6 if step == 3 else 1.0))
    assert (event["op"], event["outside"], event["module"], event["step"], event["direction"]) == ("mul", True, None, 3, "forward")


def test_a_leap_of_the_gradient_that_arrives_from_the_loss_lies_outside_the_model() -> None:
    (event,) = watched(loss=lambda y, step: plain(y, step) + ((y - y.detach()) * (1e6 if step == 3 else 1.0)).sum())
    assert (event["op"], event["outside"], event["module"], event["step"], event["direction"]) == ("mul", True, None, 3, "backward")


def test_a_leap_of_the_batch_lies_before_the_model() -> None:
    (event,) = watched(loss=plain, scale=lambda x, step: x * (1e6 if step == 3 else 1.0))
    assert (event["op"], event["outside"], event["step"]) == ("mul", True, 3)


def masked(y: torch.Tensor, step: int) -> torch.Tensor:
    """A mask that is there from the third step on, as the first padded batch brings it."""
    return y.masked_fill(torch.arange(3) == 0, -1e9 if step == 3 else 0.0).softmax(-1).square().sum()


@pytest.mark.parametrize("loss", [plain, masked, lambda y, step: plain(y, step) * 50.0**step, lambda y, step: plain(y, step) / 1e-6])
def test_sound_trainings_note_nothing(loss: Loss) -> None:
    assert watched(loss=loss) == []


def test_what_leaps_again_and_again_is_not_run_again_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[float] = []
    monkeypatch.setattr(_locating, "play", lambda region, losses, **how: played.append(how["leap"].most))
    factors = [10.0 ** (0 if step < 2 else 4 * (step - 1)) for step in range(2 + MAX_LEAPS + 3)]
    torch.manual_seed(0)
    model = nn.Linear(4, 1).double()
    with hs.watch(model, on_finding="ignore") as w:
        for factor in factors:
            (model(torch.ones(2, 4, dtype=torch.float64)).sum() * factor).backward()
            torch.optim.SGD(model.parameters(), lr=0.0).step()
    assert len(played) == MAX_LEAPS
    assert played == pytest.approx([1e5] * MAX_LEAPS)  # ten times what each is larger than the one before
    assert noted(w.run) == []
