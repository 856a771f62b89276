"""Forwards that can be told apart in a run: each one's input is a number of its own, which `tag` passes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from hookscope._record import Run


class Tagged(nn.Module):
    """`tag` returns its input; `map` is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.tag, self.map = nn.Identity(), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.map(self.tag(x))


def batch(number: float) -> torch.Tensor:
    return torch.full((3, 2), float(number))


def loss_of(model: Any, number: float) -> torch.Tensor:
    """A loss of one forward, with a gradient for every parameter."""
    loss: torch.Tensor = (model(batch(number)) + 1).square().mean()
    return loss


def tags(run: Run, site: str = "tag:output") -> dict[int, list[list[float]]]:
    """For each step its micro-batches, for each of those the numbers of its forwards in the order of their calls."""
    rows, number = run.rows(), run.sites.one(site)[0].id
    found: dict[int, list[list[float]]] = {}
    for step, micro, which, call, stats in zip(rows.step, rows.micro, rows.site, rows.call, rows.stats.tolist(), strict=True):
        if which == number:
            micros = found.setdefault(int(step), [])
            micros += [[] for _ in range(int(micro) + 1 - len(micros))]
            assert len(micros[micro]) == call
            micros[micro].append(stats[4] / stats[0])
    return found


def micros_with(run: Run, site: str) -> dict[int, list[int]]:
    """For each step the micro-batches in which the site has a row."""
    rows, number = run.rows(), run.sites.one(site)[0].id
    found: dict[int, list[int]] = {}
    for step, micro, which in zip(rows.step, rows.micro, rows.site, strict=True):
        if which == number:
            found.setdefault(int(step), []).append(int(micro))
    return found


def events(run: Run, kind: str, *fields: str) -> list[Any]:
    """What the run's events of this kind say in some fields."""
    return [tuple(event[f] for f in fields) for event in run.events if event["event"] == kind]


def at(run: Run, site: str, quantity: str | None = None) -> dict[int, float]:
    """A series as a dict, rounded to what float32 holds."""
    steps, values = run[(site, quantity)] if quantity else run[site]
    return {step: round(value, 5) for step, value in zip(steps.tolist(), values.tolist(), strict=True)}


def one_by_one(steps: Sequence[int]) -> dict[int, list[list[float]]]:
    """What `tags` gives where the forward of each step has the step's own number."""
    return {step: [[float(step)]] for step in steps}
