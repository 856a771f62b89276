"""A step that was left out until it went bad names the same place as one that was recorded in full, or says that it is not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._core._finding import Finding
from hookscope._watch import _pace
from hookscope._watch._pace import Pace

STEPS, BAD = 12, 8


class Spoiled(torch.autograd.Function):
    """Its own backward makes NaN; no operation of torch's does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bad: bool) -> torch.Tensor:
        ctx.bad = bad
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return (grad * float("nan") if ctx.bad else grad), None


def bad_batch(model: nn.Module, batch: torch.Tensor, bad: bool) -> torch.Tensor:
    return model(torch.sqrt(batch.abs() - (0.5 if bad else 0.0))).square().mean()  # type: ignore[no-any-return]


def bad_loss_gradient(model: nn.Module, batch: torch.Tensor, bad: bool) -> torch.Tensor:
    return torch.sqrt(model(batch).square() * (0.0 if bad else 1.0)).mean()


def bad_function(model: nn.Module, batch: torch.Tensor, bad: bool) -> torch.Tensor:
    return Spoiled.apply(model(batch), bad).square().mean()  # type: ignore[no-any-return,no-untyped-call]  # torch's own


Loss = Callable[[nn.Module, torch.Tensor, bool], torch.Tensor]


def first(loss: Loss, every: int | None) -> Finding:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with hs.watch(model, optimizer, on_finding="ignore", every=every) as watch:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(model, torch.randn(16, 4), step == BAD).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return hs.diagnose(watch.run).findings[0]


@pytest.fixture(autouse=True)
def _saving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pace, "OPENING_S", 0.0)
    monkeypatch.setattr(Pace, "_decide", lambda self, step: step < 2 or step <= self._until)


@pytest.mark.parametrize("loss", [bad_batch, bad_loss_gradient])
def test_what_running_it_again_tells_is_named_as_if_all_were_recorded(
    loss: Callable[[nn.Module, torch.Tensor, bool], torch.Tensor],
) -> None:
    places = [(f.rule, f.where, f.module, f.op, f.first_step) for f in (first(loss, every) for every in (1, None))]
    assert places[0] == places[1]
    assert places[0][3:] == ("sqrt", BAD)


def test_what_it_cannot_tell_is_not_claimed() -> None:
    found = first(bad_function, None)
    assert (found.rule, found.where, found.module, found.op, found.first_step) == ("nonfinite-backward", "unknown", None, None, BAD)
    assert "received a clean gradient" not in found.message
    assert first(bad_function, 1).where == "loss"
