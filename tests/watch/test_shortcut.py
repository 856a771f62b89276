"""Steps that go by in few calls leave the same run behind as those that go the long way, whatever else the loop does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.overrides import TorchFunctionMode

import hookscope as hs
from hookscope._stats._backend import KERNEL
from hookscope._watch import _pace
from hookscope._watch._shortcut import Shortcut

pytestmark = pytest.mark.skipif(KERNEL is None, reason="without the kernel all steps go the long way")

FIRST = 3
X = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
Y = X.sum(1, keepdim=True)


@pytest.fixture(autouse=True)
def _thrifty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pace, "OPENING_S", 0.0)
    monkeypatch.setattr(_pace.Pace, "_decide", lambda self, step: step < FIRST or step <= self._until or step % 16 == 15)


class Net(nn.Module):
    """Returns more than a tensor if it is told to."""

    def __init__(self, *, several: bool = False) -> None:
        super().__init__()
        self.inner, self.head, self.several = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 1), several

    def forward(self, x: torch.Tensor, *, fail: bool = False) -> Any:
        h = self.inner(x)
        if fail:
            raise ArithmeticError
        return (self.head(h), h) if self.several else self.head(h)


class Loop:
    """One training; each method is a step, or something beside one."""

    def __init__(self, *, several: bool = False) -> None:
        torch.manual_seed(0)
        self.model = Net(several=several)
        self.sgd = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.other = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        self.watch: hs.watch

    def loss(self) -> torch.Tensor:
        out = self.model(X)
        return ((out[0] if isinstance(out, tuple) else out) - Y).square().mean()

    def step(self) -> None:
        self.sgd.zero_grad()
        self.loss().backward()
        self.sgd.step()

    def accumulate(self) -> None:
        self.sgd.zero_grad()
        self.loss().backward()
        self.loss().backward()
        self.sgd.step()

    def two_forwards(self) -> None:
        self.sgd.zero_grad()
        (self.loss() + self.loss()).backward()
        self.sgd.step()

    def keep(self) -> None:
        """Zero in place, and go twice through one graph."""
        self.sgd.zero_grad(set_to_none=False)
        loss = self.loss()
        loss.backward(retain_graph=True)
        loss.backward()
        self.sgd.step()

    def second_order(self) -> None:
        self.sgd.zero_grad()
        loss = self.loss()
        (grad,) = torch.autograd.grad(loss, self.model.head.weight, create_graph=True)
        (loss + grad.square().sum()).backward()
        self.sgd.step()

    def poisoned(self) -> None:
        self.sgd.zero_grad()
        (self.loss() * float("nan")).backward()

    def far(self) -> None:
        self.sgd.zero_grad()
        (self.loss() * 1e6).backward()

    def drop(self) -> None:
        self.sgd.zero_grad()
        self.loss().backward()

    def only_step(self) -> None:
        self.sgd.step()

    def evaluate(self) -> None:
        with torch.no_grad():
            self.model.eval()(X)
        self.model.train()

    def inner(self) -> None:
        self.model.inner(X)

    def failing(self) -> None:
        with suppress(ArithmeticError):
            self.model(X, fail=True)

    def backward_fails(self) -> None:
        def refuse(grad: torch.Tensor) -> None:
            raise ArithmeticError

        self.sgd.zero_grad()
        loss = self.loss()
        handle = self.model.head.weight.register_hook(refuse)
        with suppress(ArithmeticError):
            loss.backward()
        handle.remove()

    def within(self) -> None:
        """A backward in a backward."""

        def again(grad: torch.Tensor) -> None:
            with torch.enable_grad():
                (torch.ones(1, requires_grad=True) * 2).backward()

        self.sgd.zero_grad()
        out = self.model(X)
        out = out[0] if isinstance(out, tuple) else out
        out.register_hook(again)
        (out - Y).square().mean().backward()
        self.sgd.step()

    def another(self) -> None:
        self.other.zero_grad()
        self.loss().backward()
        self.other.step()

    def closure(self) -> None:
        def again() -> torch.Tensor:
            self.sgd.zero_grad()
            loss = self.loss()
            loss.backward()
            return loss

        self.sgd.step(again)  # type: ignore[arg-type]  # it returns the loss, whatever the stub says

    def scaled(self) -> None:
        self.sgd.zero_grad()
        self.scaler.scale(self.loss()).backward()
        self.scaler.step(self.sgd)
        self.scaler.update()

    def in_a_list(self) -> None:
        self.sgd.zero_grad()
        torch.autograd.backward([self.loss()])
        self.sgd.step()

    def under_a_mode(self) -> None:
        class Mode(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return func(*args, **(kwargs or {}))

        with Mode():
            self.step()

    def faster(self) -> None:
        self.sgd.param_groups[0]["lr"] *= 1.1

    def as_a_tensor(self) -> None:
        self.sgd.param_groups[0]["lr"] = torch.tensor(float(self.sgd.param_groups[0]["lr"]))

    def write(self) -> None:
        with torch.no_grad():
            self.model.head.bias.add_(0.1)

    def spoil(self) -> None:
        with torch.no_grad():
            self.model.head.bias.mul_(float("inf")).clamp_(-1.0, 1.0)

    def log(self) -> None:
        self.watch.log("mark", 1.0)


THINGS = sorted(name for name, value in vars(Loop).items() if not name.startswith("_") and name not in ("loss", "step"))


def left_behind(things: list[str], *, several: bool) -> tuple[dict[str, Any], int]:
    """Everything that a run of this loop tells, but times; and how many steps have taken the shortcut."""
    loop = Loop(several=several)
    ended = Counter[str]()
    taken: Callable[..., bool] = Shortcut.attempt_ends

    def counted(self: Shortcut, optimizer: torch.optim.Optimizer) -> bool:
        ended["short"] += (done := taken(self, optimizer))
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shortcut, "attempt_ends", counted)
        with hs.watch(loop.model, on_finding="ignore") as loop.watch:
            for thing in things:
                getattr(loop, thing)()
    run = loop.watch.run
    rows = [repr(row) for row in run.arrow().to_pylist() if row["site"] != "seconds"]
    quiet = ("seconds", "spent_seconds")
    events = [{k: repr(v) for k, v in event.items() if k not in quiet} for event in run.events]
    weights = [p.detach().nan_to_num(7.5).tolist() for p in loop.model.parameters()]
    return {"events": events, "rows": rows, "weights": weights}, ended["short"]


def both_ways(things: list[str], *, several: bool = False) -> int:
    """How many steps took the shortcut, if that is all the difference it makes."""
    shortly, taken = left_behind(things, several=several)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shortcut, "learn", lambda self, optimizer: None)
        at_length, never = left_behind(things, several=several)
    assert never == 0
    assert shortly == at_length
    return taken


@pytest.mark.parametrize("several", [False, True])
def test_ordinary_steps_take_it(several: bool) -> None:
    assert both_ways(["step"] * 60, several=several) > 30


@pytest.mark.parametrize("thing", THINGS)
def test_whatever_comes_between_is_told_as_ever(thing: str) -> None:
    steps = ["step"] * 12
    assert both_ways([*steps, thing, *steps, thing, thing, *steps[:3]]) > 4


@pytest.mark.parametrize("thing", ["keep", "accumulate", "drop", "evaluate", "far"])
def test_what_comes_before_a_recorded_step_is_told_as_ever(thing: str) -> None:
    both_ways([*["step"] * 19, "accumulate", *["step"] * 10, thing, *["step"] * 6])  # of the 32nd backward all is looked at


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from(THINGS), max_size=12), st.booleans(), st.randoms(use_true_random=False))
def test_any_mixture_of_steps_leaves_the_same_run(things: list[str], several: bool, random: Any) -> None:
    mixed = [*things, *["step"] * 24]
    random.shuffle(mixed)
    both_ways(["step"] * 8 + mixed, several=several)


def test_a_watch_that_ends_within_a_backward_hears_no_more_of_it() -> None:
    loop = Loop()
    with hs.watch(loop.model, on_finding="ignore") as loop.watch:
        for _ in range(12):
            loop.step()
        loss = loop.loss()
        loop.model.head.bias.register_hook(lambda _: loop.watch.close())
        loss.backward()
        loop.sgd.step()
    assert loop.watch.step == 12
    assert [event["event"] for event in loop.watch.run.events] == ["closed"]


def test_a_failure_on_it_switches_a_part_off_and_the_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, *_: Any) -> None:
        raise ArithmeticError("a bug")

    loop = Loop()
    with hs.watch(loop.model, on_finding="ignore") as loop.watch:
        for _ in range(12):
            loop.step()
        monkeypatch.setattr("hookscope._watch._sentinel.Sentinel.calm", fail)
        before = loop.model.head.bias.clone()
        with pytest.warns(hs.HookscopeWarning, match="steps is switched off at step 12 .* a bug"):
            loop.step()
        loop.step()
    assert not torch.equal(before, loop.model.head.bias)


def test_another_watch_is_told_too() -> None:
    loop = Loop()
    with hs.watch(loop.model, on_finding="ignore") as loop.watch:
        for _ in range(12):
            loop.step()
        with hs.watch(loop.model, on_finding="ignore", every=1) as second:
            for _ in range(4):
                loop.step()
        for _ in range(4):
            loop.step()
    assert (loop.watch.step, second.step) == (20, 4)
    assert second.run.steps.tolist() == [0, 1, 2, 3]
