"""The rules on small trainings that were watched: the planted fault is the first finding, and the sound twin has none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._core._finding import Diagnosis

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _one_seed() -> Iterator[None]:
    before = torch.get_rng_state()
    torch.manual_seed(0)
    yield
    torch.set_rng_state(before)


class RootOfSquare(nn.Module):
    """|x| written as sqrt(x * x): its derivative at 0 is 0 / 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(x * x)


class Log(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x)


class Halved(nn.Module):
    """Own code between two layers."""

    def __init__(self, make_nan: bool) -> None:
        super().__init__()
        self.a, self.b, self.make_nan = nn.Linear(4, 4), nn.Linear(4, 1), make_nan

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        return self.b(h / (0 * h.detach()) if self.make_nan else h)


def train(
    model: nn.Module,
    loss: Callable[[torch.Tensor], torch.Tensor] = lambda y: (y - 1).pow(2).mean(),
    *,
    steps: int = 5,
    lr: float = 1e-2,
    batch: Callable[[int], torch.Tensor] = lambda _: torch.randn(16, 4),
) -> Diagnosis:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with hs.watch(model, optimizer, on_finding="ignore") as watched:
        for step in range(steps):
            optimizer.zero_grad()
            loss(model(batch(step))).backward()
            optimizer.step()
    return hs.diagnose(watched.run)


def mlp(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), *between, nn.Linear(8, 1))


def deep(gain: float) -> nn.Sequential:
    """Twelve tanh layers of width 16, weights of standard deviation gain / sqrt(16)."""
    layers = [nn.Linear(4 if i == 0 else 16, 16, bias=False) for i in range(12)]
    for layer in layers:
        nn.init.normal_(layer.weight, 0, gain / math.sqrt(layer.in_features))
    return nn.Sequential(*(m for layer in layers for m in (layer, nn.Tanh())), nn.Linear(16, 1))


def test_a_sound_training_has_no_finding() -> None:
    assert train(mlp(nn.ReLU()), steps=60).findings == ()


def test_a_module_that_makes_nan_from_a_negative_number_is_named() -> None:
    found = train(mlp(Log())).findings[0]
    assert (found.rule, found.module, found.first_step) == ("nonfinite-forward", "1", 0)


@pytest.mark.parametrize("make_nan", [True, False])
def test_a_division_between_two_layers_is_the_models_own_code(make_nan: bool) -> None:
    named = [(f.rule, f.module) for f in train(Halved(make_nan))][:1]
    assert named == ([("nonfinite-forward", "(root)")] if make_nan else [])


def test_a_gradient_that_becomes_nan_inside_a_module_names_it() -> None:
    model = mlp(nn.ReLU(), RootOfSquare())
    found = train(model).findings[0]
    assert (found.rule, found.module, found.phase, found.first_step) == ("nonfinite-backward", "2", "backward", 0)


def test_a_root_of_zero_in_the_loss_is_the_loss() -> None:
    found = train(mlp(nn.ReLU()), lambda y: torch.sqrt((y - y.detach()).pow(2)).mean()).findings[0]
    assert (found.rule, found.where, found.phase) == ("nonfinite-backward", "loss", "backward")


def test_a_mean_over_nothing_is_the_loss_of_that_step_alone() -> None:
    steps = iter(range(9))
    diagnosis = train(mlp(nn.ReLU()), lambda y: y[: 0 if next(steps) == 3 else None].pow(2).mean(), steps=8)
    assert [(f.rule, f.where, f.first_step, f.last_step) for f in diagnosis] == [("nonfinite-loss", "loss", 3, 3)]


def test_a_nan_in_the_batch_is_the_data_of_that_step() -> None:
    def batch(step: int) -> torch.Tensor:
        x = torch.randn(16, 4)
        x[0, 0] = math.nan if step == 2 else 0.0
        return x

    found = train(mlp(nn.ReLU()), batch=batch).findings[0]
    assert (found.rule, found.where, found.phase, found.first_step) == ("nonfinite-input", "data", "data", 2)


def test_a_weight_that_was_never_initialised_is_named_before_the_modules_it_spoils() -> None:
    model = mlp(nn.ReLU())
    nn.init.constant_(model[2].weight, math.nan)
    found = train(model).findings[0]
    assert (found.rule, found.module, found.phase, found.first_step) == ("nonfinite-weight", "2", "init", 0)


@pytest.mark.parametrize(("lr", "rules"), [(1e-2, []), (50.0, ["lr-too-high"])])
def test_a_learning_rate_of_fifty_is_too_high(lr: float, rules: list[str]) -> None:
    assert [f.rule for f in train(mlp(nn.ReLU()), lr=lr, steps=10)][:1] == rules


@pytest.mark.parametrize(("gain", "rules"), [(1.0, []), (0.05, ["vanishing-grad", "act-shrink-depth"])])
def test_twelve_tanh_layers_vanish_with_small_weights_only(gain: float, rules: list[str]) -> None:
    assert [f.rule for f in train(deep(gain), steps=25)] == rules


def test_twelve_linear_layers_with_large_weights_explode() -> None:
    model = nn.Sequential(*(m for m in deep(5.0) if not isinstance(m, nn.Tanh)))
    found = train(model, steps=5, lr=1e-30).findings[0]
    assert (found.rule, found.phase, found.first_step) == ("act-explode-depth", "forward", 0)


class Unrolled(nn.Module):
    """One cell, called twenty times."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.cell, self.out = nn.Linear(4, 4, bias=False), nn.Linear(4, 1)
        with torch.no_grad():
            self.cell.weight.copy_(gain * torch.eye(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = self.cell(x)
        return self.out(x)


@pytest.mark.parametrize(("gain", "named"), [(1.0, []), (1.6, [("act-explode-depth", "cell")])])
def test_growth_over_the_calls_of_one_module_is_growth_through_depth(gain: float, named: list[tuple[str, str]]) -> None:
    """1.6 ** 20 = 12,089."""
    assert [(f.rule, f.module) for f in train(Unrolled(gain), steps=3, lr=1e-12)] == named
