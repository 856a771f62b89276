"""Forwards of other threads, and those that a loader runs itself, are no part of what a tool was asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._lab._unchanged import evaluating


class Meddled(nn.Module):
    """While its forward runs, another thread runs it on `other`, from beginning to end; a loader may do so between."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(4, 8), nn.ReLU()
        self.other: torch.Tensor | None = None
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if threading.current_thread() is threading.main_thread() and self.other is not None:
            elsewhere(lambda: self.seen.append(self(self.other).detach()))
        return self.act(self.fc(x))


def elsewhere(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.fixture
def model() -> Meddled:
    torch.manual_seed(0)
    return Meddled()


@contextmanager
def meddled(model: Meddled) -> Iterator[None]:
    model.other = torch.full((7, 4), 100.0)
    try:
        yield
    finally:
        model.other = None


X = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))


def loader_that_runs(model: nn.Module) -> Iterator[torch.Tensor]:
    for part in X.split(8):
        model(torch.full((3, 4), 50.0))
        yield part


def test_an_analysis_takes_its_own_forwards_alone(model: Meddled) -> None:
    alone = hs.analyze(model, list(X.split(8)), spectrum=False)
    with meddled(model):
        found = hs.analyze(model, loader_that_runs(model), spectrum=False)
    assert model.seen  # the other thread did run it
    assert (found["fc"].stats.n == 16).all()
    assert (found["fc"].stats.mean == alone["fc"].stats.mean).all()


def test_attention_of_another_thread_is_not_taken() -> None:
    class Attending(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if threading.current_thread() is threading.main_thread():
                elsewhere(lambda: self(x))
            return nn.functional.scaled_dot_product_attention(x, x, x)

    found = hs.analyze(Attending(), [torch.randn(2, 3, 5, 4)])
    assert found.attention[""].rows.tolist() == [10, 10, 10]


def test_cka_takes_its_own_forwards_alone(model: Meddled) -> None:
    alone = hs.cka(model, [X], "*")
    with meddled(model):
        assert hs.cka(model, [X], "*")["fc", "act"] == alone["fc", "act"]


def test_diff_hears_its_own_thread_alone(model: Meddled, tmp_path: Any) -> None:
    reference = hs.record_reference(model, X, to=tmp_path / "ref")
    with meddled(model):
        found = hs.diff(reference, model, X)
        again = hs.record_reference(model, X, to=tmp_path / "again")
    assert "equal to the last bit at all 3 sites" in found.verdict
    assert "equal to the last bit at all 3 sites" in hs.diff(again, model, X).verdict


def test_a_sweep_edits_its_own_forwards_alone(model: Meddled) -> None:
    clean, corrupt = X[:1], X[1:2]
    alone = hs.trace_patch(model, clean, corrupt, "fc", lambda output: output.sum(), positions="whole")
    with torch.no_grad():
        untouched = model(torch.full((7, 4), 100.0))
    with meddled(model):
        found = hs.trace_patch(model, clean, corrupt, "fc", lambda output: output.sum(), positions="whole")
        ranked = hs.ablate(model, "fc", lambda model, x: model(x).sum(), loader_that_runs(model))
    assert found.effect.tolist() == alone.effect.tolist()
    assert ranked[0].value == 0
    assert len(model.seen) >= 4
    assert all(torch.equal(one, untouched) for one in model.seen)


def test_the_last_of_two_overlapping_analyses_puts_the_modes_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.ReLU())
    model[2].eval()
    first, second = evaluating(model), evaluating(model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not any(module.training for module in model.modules())
    second.__exit__(None, None, None)
    assert [module.training for module in model.modules()] == [True, True, True, False]
