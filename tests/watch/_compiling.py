"""Trainings that are run twice, eagerly and compiled, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._core._stats import Stats
from hookscope._record import Run

from ._oracle import Key, recorded

How = Callable[[nn.Module], Any]  # compiles a model: returns what is to be called instead, or None
READ = ("output", "output_grad")


class Block(nn.Module):
    """A residual block with a normalisation."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.wide, self.act, self.narrow = nn.LayerNorm(width), nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.narrow(self.act(self.wide(self.norm(x))))
        return out


def tower(blocks: int = 3) -> nn.Sequential:
    """Blocks between two layers."""
    return nn.Sequential(nn.Linear(4, 8), *(Block() for _ in range(blocks)), nn.Linear(8, 2))


def whole(model: nn.Module, backend: str = "aot_eager") -> Any:
    """By `torch.compile(model)`."""
    return torch.compile(model, backend=backend, fullgraph=True)


def by_method(model: nn.Module, backend: str = "aot_eager") -> None:
    """By `model.compile()`."""
    model.compile(backend=backend, fullgraph=True)


def by_blocks(model: nn.Module, backend: str = "aot_eager") -> None:
    """Each block by itself."""
    for module in model.modules():
        if isinstance(module, Block):
            module.compile(backend=backend, fullgraph=True)


@dataclass
class Trained:
    """What came of a training."""

    model: nn.Module
    run: Run
    graphs: int
    breaks: int
    rows: dict[Key, Stats] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = recorded(self.run, kinds=READ)

    def told(self, name: str) -> list[str]:
        """The modules in the event of this name."""
        return [module for event in self.run.events if event["event"] == name for module in event["modules"]]


def train(
    make: Callable[[], nn.Module], batches: Sequence[torch.Tensor], compile_: How | None = None, *, watched: bool = True, **how: Any
) -> Trained:
    """One step a batch, from the same weights."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    how = {"every": 1} | how  # on a slow machine the budget leaves steps out after the first one
    watch = hs.watch(model if watched else nn.Linear(1, 1), optimizer if watched else None, on_finding="ignore", **how)
    called = None if compile_ is None else compile_(model)
    called = model if called is None else called
    with watch:
        for batch in batches:
            optimizer.zero_grad()
            called(batch).square().mean().backward()
            optimizer.step()
    counters = torch._dynamo.utils.counters
    return Trained(model, watch.run, counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))


def same_bits(one: nn.Module, other: nn.Module) -> bool:
    """Whether all parameters are equal."""
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def together(rows: dict[Key, Stats]) -> dict[tuple[int, int, str], Stats]:
    """The calls of each module merged."""
    merged: dict[tuple[int, int, str], Stats] = {}
    for (step, micro, site, _), stats in sorted(rows.items()):
        merged[step, micro, site] = stats.merge(merged[step, micro, site]) if (step, micro, site) in merged else stats
    return merged


def assert_same(found: dict[Any, Stats], expected: dict[Any, Stats]) -> None:
    assert found.keys() == expected.keys()
    for key, stats in expected.items():
        assert found[key] == pytest.approx(stats, rel=1e-12, abs=1e-12), key
