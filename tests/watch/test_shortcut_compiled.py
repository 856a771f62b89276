"""Steps that are left out go by in few calls where the model is compiled, too, and leave the same run behind as those that do not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._stats._backend import KERNEL
from hookscope._watch import _pace
from hookscope._watch._shortcut import Shortcut

pytestmark = pytest.mark.skipif(KERNEL is None, reason="without the kernel all steps go the long way")

STEPS, FIRST = 24, 3


@pytest.fixture(autouse=True)
def _thrifty(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(_pace, "OPENING_S", 0.0)
    monkeypatch.setattr(_pace.Pace, "_decide", lambda self, step: step < FIRST or step <= self._until or step % 16 == 15)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.b(torch.tanh(self.a(x)))
        return out


def compiled(model: Net, way: str) -> nn.Module:
    if way == "in place":
        model.compile(backend="aot_eager")
    elif way == "block":
        model.a.compile(backend="aot_eager")
    return torch.compile(model, backend="aot_eager") if way == "whole" else model  # type: ignore[return-value]


def train(way: str, bad: int, late: int = 0) -> tuple[list[torch.Tensor], hs.Watch]:
    """A training, compiled before its step `late`, whose loss goes bad at the step `bad`."""
    torch.manual_seed(0)
    model = Net()
    called: nn.Module = model if late else compiled(model, way)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with hs.watch(model, optimizer, on_finding="ignore") as watch:
        for step in range(STEPS):
            if late == step > 0:
                called = compiled(model, way)
            optimizer.zero_grad()
            out = called(torch.randn(16, 4))
            (torch.log(out - 1e3).mean() if step == bad else out.square().mean()).backward()
            optimizer.step()
    return [parameter.detach() for parameter in model.parameters()], watch


def rows(watch: hs.Watch) -> list[list[float]]:
    """All that was recorded but times."""
    timed = [site.id for site in watch.run.sites if site.path == "seconds"]
    found = watch.run.table.overview(None, None)
    names = {site.id: (site.full_path, site.kind, site.label) for site in watch.run.sites}
    places = zip(found.step.tolist(), found.site.tolist(), found.stats.tolist(), strict=True)
    return sorted([step, *names[site], *map(repr, stats)] for step, site, stats in places if site not in timed)


@pytest.mark.parametrize("way", ["whole", "in place", "block"])
def test_the_run_and_the_training_are_the_same_either_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    short, ends = [], Shortcut.attempt_ends

    def counted(self: Shortcut, optimizer: torch.optim.Optimizer) -> bool:
        short.append(ends(self, optimizer))
        return short[-1]

    monkeypatch.setattr(Shortcut, "attempt_ends", counted)
    weights, watch = train(way, bad=20)
    assert sum(short) >= 10
    torch.compiler.reset()
    monkeypatch.setattr(Shortcut, "learn", lambda _self, _optimizer: None)
    slowly, other = train(way, bad=20)
    assert 20 in watch.run.steps.tolist()
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(weights, slowly, strict=True))
    assert rows(watch) == rows(other)


def test_what_is_compiled_while_steps_are_left_out_is_read_in_the_next_recorded_one() -> None:
    _, watch = train("whole", bad=-1, late=9)
    found = {site.path for site in watch.run.sites if site.kind == "output"}
    assert {"a", "b"} <= found
    read = watch.run["a:output", "count"]
    assert 15 in read.steps.tolist()
