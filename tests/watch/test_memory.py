"""A watch keeps nothing alive: not the model, not a batch, an output, a graph, and it does not grow."""

from __future__ import annotations

import gc
import sys
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs

pytestmark = pytest.mark.slow

SETTINGS: list[dict[str, Any]] = [{}, {"updates": "full"}, {"every": 3}, {"select": ["**", "**:input"]}]


class Alive:
    """Weak references by name."""

    def __init__(self) -> None:
        self.refs: dict[str, weakref.ref[Any]] = {}

    def note(self, **things: Any) -> None:
        self.refs |= {name: weakref.ref(thing) for name, thing in things.items()}

    def names(self) -> set[str]:
        return {name for name, ref in self.refs.items() if ref() is not None}


class Passes(torch.autograd.Function):
    """Its node in the graph can be referred to weakly, unlike those of torch's own operations."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(Passes.apply(self.act(self.first(x))))


def forward(model: nn.Module, alive: Alive) -> torch.Tensor:
    batch = torch.randn(3, 4)
    output = model(batch)
    loss = output.square().mean()
    node: Any = output.grad_fn.next_functions[1][0]
    assert type(node).__name__ == "PassesBackward"
    alive.note(batch=batch, output=output, loss=loss, node=node)
    return loss


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, alive: Alive) -> None:
    optimizer.zero_grad()
    forward(model, alive).backward()
    optimizer.step()


@pytest.mark.parametrize("settings", SETTINGS)
def test_while_watching_whatever_a_step_made_dies_with_it(settings: dict[str, Any]) -> None:
    model, alive = Net(), Alive()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.disable()  # without hookscope the last reference is enough
    try:
        with hs.watch(model, optimizer, **settings):
            for _ in range(5):
                one_step(model, optimizer, alive)
                assert alive.names() == set()
            forward(model, alive)  # without a backward: what went in may be asked for once more, if that comes and is bad
            assert alive.names() <= {"batch"}
            without = alive.refs["batch"]
            for _ in range(8):  # so many forwards are held at most, whose backward has not come
                one_step(model, optimizer, alive)
                assert alive.names() == set()
            assert without() is None
    finally:
        gc.enable()
        gc.collect()  # now: CPython 3.11 may crash if it collects weak references to a model while that is freed


@pytest.mark.parametrize("unfinished", [False, True])
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_closed_watch_that_is_kept_keeps_nothing_of_the_training(settings: dict[str, Any], unfinished: bool) -> None:
    model, alive = Net(), Alive()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alive.note(model=model, layer=model.last, weight=model.last.weight, optimizer=optimizer)
    with hs.watch(model, optimizer, **settings) as w:
        for _ in range(2):
            one_step(model, optimizer, alive)
        if unfinished:
            forward(model, alive).backward()
    del model, optimizer
    gc.collect()
    assert alive.names() == set()
    assert w.step >= 2


def test_an_open_watch_does_not_keep_its_model() -> None:
    model, alive = Net(), Alive()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alive.note(model=model, weight=model.last.weight, optimizer=optimizer)
    with hs.watch(model, optimizer):
        one_step(model, optimizer, alive)
        forward(model, alive).backward()
        del model, optimizer
        gc.collect()
        assert alive.names() == set()


@pytest.mark.parametrize("fails_in", ["forward", "backward", "step"])
def test_a_step_that_failed_is_not_kept(fails_in: str) -> None:
    model, alive = Net(), Alive()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alive.note(model=model, weight=model.last.weight, optimizer=optimizer)

    def fail(*args: Any) -> None:
        raise ValueError("the user's own")

    place: dict[str, Any] = {
        "forward": model.last.register_forward_hook,
        "backward": model.first.weight.register_hook,
        "step": optimizer.register_step_pre_hook,
    }
    w = hs.watch(model, optimizer)
    one_step(model, optimizer, alive)
    handle = place[fails_in](fail)
    with pytest.raises(ValueError, match="the user's own"), w:
        one_step(model, optimizer, alive)
    del model, optimizer, handle, place
    gc.collect()
    assert alive.names() == set()


def blocks_after(steps: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    alive = Alive()
    for _ in range(steps):
        one_step(model, optimizer, alive)
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.slow  # 2,000 steps
def test_memory_does_not_grow_with_the_steps_recorded_to_disk(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hs.watch(model, optimizer, to=tmp_path / "run", on_finding="ignore") as w:
        counts = [blocks_after(500, model, optimizer) for _ in range(4)]  # the live rules keep some 250 frames, and no more
    assert len(w.run.steps) == 2000
    frame = 6  # arrays at the least
    assert min(later - earlier for earlier, later in pairwise(counts)) < 500 * frame / 4, counts  # any one may end just before a flush
