"""Steps that are left out go by without a detour; whatever else happens in them is told as where every step is recorded."""

from __future__ import annotations

import pytest
import torch

import hookscope as hs
from hookscope._watch import _pace

from ._loops import LOOPS, STEPS, Loop, X, net, ordinary, run

FIRST = 3


@pytest.fixture(autouse=True)
def _thrifty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pace, "OPENING_S", 0.0)
    monkeypatch.setattr(_pace.Pace, "_decide", lambda self, step: step < FIRST or step <= self._until)


@pytest.mark.parametrize("loop", LOOPS)
def test_steps_are_counted_as_where_all_are_recorded(loop: Loop) -> None:
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
