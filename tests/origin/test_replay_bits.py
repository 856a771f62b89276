"""A training in which every fifth backward is run again ends with the bits of one that nobody watches."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import hookscope as hs

from ..watch._bits import differing, train
from ..watch._programs import PROGRAMS, Make, Training, mlp, supervised
from ._forced import Forced

pytestmark = pytest.mark.slow

STEPS = 20


class Hooked(nn.Module):
    """Hooks of the program's own, a buffer that is put in place anew, and all three generators in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = mlp(), nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(3))
        self.body.register_forward_hook(lambda module, args, output: output * 0.9)
        self.out.register_forward_pre_hook(lambda module, args: (args[0] + 0.1,))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = random.random() + float(np.random.standard_normal())  # noqa: NPY002  # the global generator is what must be put back
        h = self.body(x + 0.01 * noise)
        with torch.no_grad():
            self.mean = 0.9 * self.mean + 0.1 * h.mean(0)
        return self.out(h - self.mean + 0.01 * torch.randn(3))


class FastThenSlow(nn.Module):
    """Changes the mode of a part of itself within its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.drop.train(not self.drop.training)
        return self.out(self.drop(x))


def accumulating_over_steps() -> Training:
    """Gradients are never set to None: zeroed in place, the program holds the same objects all the time."""
    model = mlp()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(number: int) -> torch.Tensor:
        sgd.zero_grad(set_to_none=False)
        loss = model(torch.randn(5, 6)).square().mean()
        loss.backward()
        sgd.step()
        return loss.detach()

    return Training(model, [sgd], step)


OWN: dict[str, Make] = {"hooked": lambda: supervised(Hooked(), (5, 6)), "zeroed gradients": accumulating_over_steps}
EXACT = [name for name in PROGRAMS if name not in ("lbfgs", "parametrized")]


@pytest.mark.parametrize("name", [*PROGRAMS, *OWN])
def test_a_training_with_replays_ends_with_the_bits_of_an_unwatched_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make = (PROGRAMS | OWN)[name]
    forced = Forced(monkeypatch)
    assert differing(train(make, forced.observer, STEPS), train(make, steps=STEPS)) == []
    assert len(forced.found) >= STEPS // 5


@pytest.mark.parametrize("name", [*EXACT, *OWN])
def test_the_second_run_gives_what_the_first_gave(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forced = Forced(monkeypatch, every=2)
    train((PROGRAMS | OWN)[name], forced.observer, 6)
    assert [found.notes for found in forced.found if found.notes] == []


@pytest.mark.parametrize("name", ["mlp", "re-entrant checkpoint", "tied"])
def test_gradients_the_program_holds_are_the_same_objects_in_the_same_version(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def held(observer: Callable[[Training], AbstractContextManager[None]]) -> list[tuple[bool, int, list[float]]]:
        torch.manual_seed(0)
        training = PROGRAMS[name]()
        monkeypatch.setattr(training.optimizers[0], "zero_grad", lambda: None)
        parameters = list(training.models[0].parameters())
        gradients = [torch.zeros_like(p) for p in parameters]
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
        with observer(training):
            torch.manual_seed(1)
            training.models[0](torch.ones(3, 4, 8) if "checkpoint" in name else torch.ones(3, 6)).square().sum().backward()
        return [(p.grad is g, g._version, g.flatten().tolist()) for p, g in zip(parameters, gradients, strict=True)]

    forced = Forced(monkeypatch, every=1)
    assert held(forced.observer) == held(lambda training: nullcontext())
    assert [found.notes for found in forced.found] == [()]


def test_modes_and_generators_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FastThenSlow] = []

    def make() -> Training:
        made.append(FastThenSlow())
        return supervised(made[-1], (5, 6))

    forced = Forced(monkeypatch, every=1)
    assert differing(train(make, forced.observer, 3), train(make, steps=3)) == []
    assert [(model.training, model.drop.training) for model in made] == [(True, False)] * 2  # three forwards, each of which changes it
    assert len(forced.found) == 3


def modes() -> tuple[int, int]:
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


def global_hooks() -> int:
    from torch.nn.modules import module

    return len(module._global_forward_hooks) + len(module._global_forward_pre_hooks)


class FailsTheSecondTime(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(4, 2), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 2:
            raise RuntimeError("out of luck")
        return self.inner(x) * (float("nan") if self.calls == 1 else 1.0)


def test_what_fails_in_the_second_run_fails_alone() -> None:
    torch.manual_seed(0)
    model = FailsTheSecondTime()
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    before = torch.get_rng_state()
    with hs.watch(model, sgd, on_finding="ignore") as w:
        model(torch.ones(3, 4)).sum().backward()
        assert model.inner.weight.grad is not None  # what the first run left
        assert modes()[1] == 0
        assert model.calls == 2
        assert global_hooks() == 0
        sgd.step()
        model(torch.ones(3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert modes() == (0, 0)
    assert [event for event in w.run.events if event["event"] == "switched_off"] == []
    assert [f.rule for f in hs.diagnose(w.run)][:1] == ["nonfinite-forward"]


def test_nothing_is_left_in_place_by_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    training = PROGRAMS["checkpoint"]()
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in training.models[0].modules()]
    with Forced(monkeypatch, every=1).observer(training):
        training.step(0)
        assert global_hooks() == 0
        assert modes()[1] == 0
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in training.models[0].modules()] == hooks
    assert modes() == (0, 0)
