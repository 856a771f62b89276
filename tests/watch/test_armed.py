"""A second run, armed at a step: every operation is looked at while it happens, and the program ends where it was asked to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import hookscope as hs
from hookscope._watch._armed import VARIABLE, Armed, Stopped

from ._small import adam, batch, bits, mlp, told, train, trained_bits


class Own(nn.Module):
    """Draws from a generator that nobody puts back, so that no replay finds again what it did; bad at its `at`-th call."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.drawn, self.calls, self.at = torch.Generator().manual_seed(0), 0, at

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        noise = torch.rand(x.shape, generator=self.drawn)
        return torch.log(noise - 1.0) + x if self.calls > self.at else x + 0 * noise


def armed(monkeypatch: pytest.MonkeyPatch, **asked: Any) -> None:
    monkeypatch.setenv(*next(iter(Armed(**asked).as_environment().items())))


def verdicts(path: Path) -> list[tuple[int, str, str, str | None]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [(one["step"], one["op"], one["direction"], one["module"]) for one in found]


def half_root(y: torch.Tensor) -> torch.Tensor:
    return (y * 0).abs().sqrt().sum()


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Tensor], torch.Tensor], tuple[str, str, str | None]]] = {
    "forward": (lambda: mlp(Own(2)), lambda y: y.square().mean(), ("log", "forward", "1")),
    "loss": (mlp, lambda y: torch.log(y.mean() * 0 - 1), ("log", "forward", None)),
    "backward": (mlp, half_root, ("sqrt", "backward", None)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_armed_run_names_what_it_sees_happen_and_stops(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, bad, expected = PROGRAMS[name]
    armed(monkeypatch, step=2, to=str(tmp_path / "seen"), stop=True)
    model, steps = make(), iter(range(10))
    done: list[int] = []

    def loss(y: torch.Tensor) -> torch.Tensor:
        return bad(y) if next(steps) == 2 else (y - 1).square().mean()

    with pytest.raises(Stopped), hs.watch(model, optimizer := adam(model), on_finding="ignore"):
        train(model, optimizer, loss=loss, before_step=done.append)
    assert verdicts(tmp_path / "seen") == [(2, *expected)]
    assert done == [0, 1, 2]
    assert torch._C._len_torch_dispatch_stack() == 0


def test_where_nothing_is_bad_it_stops_after_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    armed(monkeypatch, step=1, to=str(tmp_path / "seen"), stop=True)
    model, done = mlp(), []
    with pytest.raises(Stopped) as stopped, hs.watch(model):
        train(model, adam(model), before_step=done.append)
    assert (stopped.value.code, done, (tmp_path / "seen").exists()) == (0, [0, 1], False)


def test_a_healthy_armed_training_ends_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    armed(monkeypatch, step=0)
    model = mlp()
    with told() as given, hs.watch(model, optimizer := adam(model)):
        train(model, optimizer)
    assert given == []
    assert bits(model) == trained_bits()
    assert torch._C._len_torch_dispatch_stack() == 0


class Counting(TorchDispatchMode):
    """A mode of the program's own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("asked", [0, 1, 3])
def test_modes_of_the_program_stay_in_order_and_see_the_same(asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> tuple[list[str], list[bytes]]:
        model, optimizer = mlp(), None
        optimizer = adam(model)
        seen: list[str] = []
        watch = hs.watch(model, optimizer)
        for step in range(4):
            with Counting() as outer:
                optimizer.zero_grad()
                model(batch(step)).square().mean().backward()
                with Counting():
                    optimizer.step()
                outer.seen.append("end")
                torch.ones(2).add_(1)
            seen += outer.seen
        watch.close()
        assert torch._C._len_torch_dispatch_stack() == 0
        return seen, bits(model)

    plain = trained()
    armed(monkeypatch, step=asked)
    assert trained() == plain


def test_an_armed_watch_leaves_the_run_on_disk_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hs.watch(model := mlp(), to=tmp_path / "run"):
        train(model, adam(model))
    before = sorted(path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*"))
    armed(monkeypatch, step=2)
    with hs.watch(model := mlp(), to=tmp_path / "run", every=5) as w:
        train(model, adam(model))
    assert w.run.steps.tolist() == [0, 1, 2, 3, 4, 5]
    assert sorted(path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")) == before


@pytest.mark.parametrize("asked", ["soon", "-1", "true", "1.5", '{"stop": true}', '{"step": "2"}', "[2]"])
def test_what_arms_nothing_is_refused_with_what_would(asked: str) -> None:
    with pytest.raises(hs.UsageError, match=r"HOOKSCOPE_ARMED=.* arms nothing: give the number of a step, such as 12, or"):
        Armed.from_environment({VARIABLE: asked})


def test_what_is_asked_for_survives_the_environment() -> None:
    assert Armed.from_environment(Armed(3, to="a b", stop=True).as_environment()) == Armed(3, to="a b", stop=True)
    assert Armed.from_environment({VARIABLE: "7"}) == Armed(7)
    assert Armed.from_environment({}) is None
