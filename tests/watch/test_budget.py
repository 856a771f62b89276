"""A training that is recorded within a budget: what is left out, and what is seen all the same."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._watch import _pace


class Net(nn.Module):
    """Goes wrong on request: at a step, in its forward or in its backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 1)
        self.root = False
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.drop(self.norm(self.first(x)))
        if self.root:
            h = torch.sqrt(h - h.detach().min() - 1e-3)
        return self.last(h)


def train(steps: int, bad: int = -1, **how: object) -> tuple[hs.watch, list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(32, 8)
    y = x.sum(1, keepdim=True)
    losses = []
    with hs.watch(model, optimizer, on_finding="ignore", **how) as w:  # type: ignore[arg-type]
        for step in range(steps):
            model.root = step == bad
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return w, losses, model.state_dict()


@pytest.fixture(autouse=True)
def _thrifty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pace, "OPENING_S", 0.0)
    monkeypatch.setattr(_pace.Pace, "_decide", lambda self, step: step % 40 == 0 or step <= self._until)


def test_steps_are_left_out_and_the_hooks_of_modules_are_off_meanwhile() -> None:
    w, _, _ = train(100)
    assert w.run.steps.tolist() == [0, 40, 80]


def test_a_training_in_which_steps_are_left_out_is_bit_exact() -> None:
    thrifty = train(100)
    full = train(100, every=1)
    assert thrifty[1] == full[1]
    assert all(torch.equal(thrifty[2][key], full[2][key]) for key in full[2])


def test_recorded_steps_hold_what_they_hold_when_all_are_recorded() -> None:
    thrifty, full = train(100)[0].run, train(100, every=1)[0].run
    for step in (0, 40, 80):
        for site in ("first:output", "norm.weight:param_grad", "last.weight:update", "norm:output_grad"):
            few, all_ = thrifty[site, "rms"], full[site, "rms"]
            assert few.values[few.steps == step] == all_.values[all_.steps == step]


def test_a_nan_in_a_step_that_was_to_be_left_out_is_named_at_its_step_operation_and_line() -> None:
    w, _, _ = train(70, bad=61)
    (finding, *_rest) = hs.diagnose(w.run)
    assert (finding.rule, finding.first_step) == ("nonfinite-forward", 61)
    assert finding.op == "sqrt"
    assert finding.source is not None
    assert Path(finding.source["file"]).name == "test_budget.py"
    assert w.run.steps.tolist()[:3] == [0, 40, 61]
    assert "everything before it is finite" not in finding.message  # nothing of it was read


def test_what_follows_an_alarm_is_recorded_in_full() -> None:
    w, _, _ = train(75, bad=61)
    steps = w.run["first:output", "rms"].steps.tolist()
    assert steps[:9] == [0, 40, *range(62, 69)]  # the outputs of step 61 had gone by


def test_a_healthy_training_gives_no_alarm_and_no_finding() -> None:
    w, losses, _ = train(200)
    assert w.findings == ()
    assert math.isfinite(losses[-1])
    assert w.run.events[-1]["alarms"] == 0


def test_an_evaluation_is_read_while_the_hooks_are_off() -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(32, 8)
    with hs.watch(model, optimizer) as w:
        for _ in range(10):
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            model(x)
        model.train()
        assert not model.first._forward_hooks
    assert w.run["first:output/eval"].steps.tolist() == [9]


@pytest.mark.parametrize("budget", [0, -0.1, 1.5, True, "much"])
def test_a_budget_that_is_no_share_is_refused(budget: object) -> None:
    with pytest.raises(hs.UsageError, match="share"):
        hs.watch(nn.Linear(1, 1), budget=budget)  # type: ignore[arg-type]
