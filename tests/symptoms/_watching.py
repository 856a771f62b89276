"""One or a few watched steps of any model, and the questions a symptom asks of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import hookscope as hs

X = torch.linspace(-1.0, 1.0, 24).reshape(4, 6)


def seeded(*layers: nn.Module) -> nn.Sequential:
    """A sequence of these layers with weights that are always the same."""
    torch.manual_seed(0)
    for layer in layers:
        for module in layer.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
    return nn.Sequential(*layers)


def watch_steps(model: nn.Module, loss: Callable[[], torch.Tensor], steps: int = 1, **options: Any) -> hs.Run:
    """Train with SGD under watch; `loss` runs the model."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    with hs.watch(model, optimizer, updates="full", **options) as w:
        for _ in range(steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    assert [event for event in w.run.events if event["event"] == "switched_off"] == []
    return w.run


def l2(run: hs.Run, name: str) -> float:
    """The norm in the first step."""
    return float(run[name, "l2"].values[0])


def norm(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.detach().double()))


def recorded(run: hs.Run, name: str) -> bool:
    return any(site.name == name and len(run[site].steps) for site in run.sites)


def calls(run: hs.Run, name: str) -> int:
    """How many rows a site has in the first step."""
    (number,) = [site.id for site in run.sites if site.name == name]
    rows = run.rows(0, 0)
    return int((rows.site == number).sum())


def never_fired(run: hs.Run) -> list[str]:
    return [path for event in run.events if event["event"] == "never_fired" for path in event["modules"]]
