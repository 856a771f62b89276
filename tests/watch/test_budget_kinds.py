"""In a step that was to be left out, the origin is named as where every step is recorded, whatever kind of badness or loop it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hookscope as hs
from hookscope._watch import _pace

pytestmark = pytest.mark.slow

OPENING, BAD, STEPS = 3, 33, 36  # the steps recorded at first, the bad one, and all of them
Named = tuple[str, str | None, str | None, str, int]


class Faulty(nn.Module):
    """Does on request what goes wrong within one operation."""

    def __init__(self) -> None:
        super().__init__()
        self.how = ""

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        if self.how == "forward nan":
            return torch.log(h * 0 - 1)
        if self.how == "forward inf":
            return torch.exp(h * 0 + 200)
        if self.how == "backward nan":
            return torch.sqrt((h * 0).abs())
        if self.how == "backward inf":
            return h + torch.sqrt(h.detach() * 0 + self.zero(h))
        return h * 1e6 if self.how == "leap" else h

    def zero(self, h: torch.Tensor) -> torch.Tensor:
        return h - h.detach()


class Net(nn.Module):
    def __init__(self, *, recomputes: bool = False) -> None:
        super().__init__()
        self.first, self.faulty, self.last = nn.Linear(8, 16), Faulty(), nn.Linear(16, 1)
        self.recomputes = recomputes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        h = checkpoint(self.faulty, h, use_reentrant=False) if self.recomputes else self.faulty(h)
        return self.last(h)


@dataclass
class Loop:
    """One training; `step` is told whether it is to be bad."""

    models: dict[str, nn.Module]
    optimizers: list[torch.optim.Optimizer]
    step: Callable[[bool], None]


X = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))


def loss_of(y: torch.Tensor) -> torch.Tensor:
    return (y - X.sum(1, keepdim=True)).square().mean()


def plain(how: str, *, recomputes: bool = False) -> Loop:
    net = Net(recomputes=recomputes)
    adam = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def step(bad: bool) -> None:
        net.faulty.how = how if bad else ""
        adam.zero_grad()
        y = net(X)
        (torch.log(y.mean() * 0 - 1) if bad and how == "loss" else loss_of(y)).backward()
        adam.step()

    return Loop({"": net}, [adam], step)


def scaled(how: str) -> Loop:
    net = Net()
    sgd = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step(bad: bool) -> None:
        net.faulty.how = how if bad else ""
        sgd.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(net(X).float())
        scaler.scale(loss).backward()
        scaler.step(sgd)
        scaler.update()

    return Loop({"": net}, [sgd], step)


def accumulating(how: str) -> Loop:
    net = Net()
    adam = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def step(bad: bool) -> None:
        adam.zero_grad()
        for part in range(3):
            net.faulty.how = how if bad and part == 1 else ""
            (loss_of(net(X)) / 3).backward()
        adam.step()

    return Loop({"": net}, [adam], step)


def adversarial(how: str) -> Loop:
    generator, critic = Net(), Net()
    generator.last = nn.Linear(16, 8)
    of_critic, of_generator = (torch.optim.SGD(m.parameters(), lr=1e-3) for m in (critic, generator))

    def step(bad: bool) -> None:
        of_critic.zero_grad()
        (critic(generator(X).detach()).mean() - critic(X).mean()).backward()
        of_critic.step()
        generator.faulty.how = how if bad else ""
        of_generator.zero_grad()
        (-critic(generator(X)).mean()).backward()
        of_generator.step()
        generator.faulty.how = ""

    return Loop({"generator": generator, "critic": critic}, [of_critic, of_generator], step)


def with_closure(how: str) -> Loop:
    net = Net()
    lbfgs = torch.optim.LBFGS(net.parameters(), lr=1e-2, max_iter=1)

    def step(bad: bool) -> None:
        def closure() -> torch.Tensor:
            net.faulty.how = how if bad else ""
            lbfgs.zero_grad()
            loss = loss_of(net(X))
            loss.backward()
            return loss

        lbfgs.step(closure)

    return Loop({"": net}, [lbfgs], step)


KINDS = ["forward nan", "forward inf", "backward nan", "backward inf"]
LOOPS: dict[str, Callable[[str], Loop]] = {
    "plain": plain,
    "scaler": scaled,
    "accumulation": accumulating,
    "gan": adversarial,
    "checkpoint": lambda how: plain(how, recomputes=True),
    "closure": with_closure,
}
CASES = [(loop, kind) for loop in LOOPS for kind in KINDS] + [("plain", "loss"), ("plain", "leap"), ("checkpoint", "leap")]


def named(loop: str, kind: str, **how: object) -> tuple[Named, list[int]]:
    """What is said of where it began, and the recorded steps."""
    torch.manual_seed(0)
    training = LOOPS[loop](kind)
    models = training.models.get("", training.models)
    with hs.watch(models, training.optimizers, on_finding="ignore", **how) as w:  # type: ignore[arg-type]
        for number in range(STEPS):
            training.step(number == BAD)
    first = next(event for event in w.run.events if event["event"] == "origin")
    assert [event for event in w.run.events if event["event"] == "switched_off"] == []
    return (first["op"], first["module"], first.get("code"), first["direction"], first["step"]), w.run.steps.tolist()


@pytest.mark.parametrize(("loop", "kind"), CASES)
def test_it_is_named_as_where_every_step_is_recorded(loop: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    full, _ = named(loop, kind, every=1)
    monkeypatch.setattr(_pace, "OPENING_S", 0.0)
    monkeypatch.setattr(_pace.Pace, "_decide", lambda self, step: step < OPENING or step <= self._until)
    thrifty, recorded = named(loop, kind)
    assert thrifty == full
    assert thrifty[-1] == BAD
    searching = loop == "scaler" and kind.startswith("backward")  # as a scaler's search for its factor looks: no alarm
    assert recorded[: OPENING + 1] == [*range(OPENING)] + [BAD] * (not searching)


def test_a_leap_that_goes_on_into_another_model_is_named_in_the_one_that_made_it() -> None:
    (op, module, code, direction, step), _ = named("gan", "leap", every=1)
    assert (op, module, direction, step) == ("mul", "generator.faulty", "forward", BAD)
    assert code is not None
    assert "h * 1e6" in code
