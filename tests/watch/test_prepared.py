"""What is prepared once for parameters does not outlive what it was prepared for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hookscope as hs


def swapped(model: nn.Module, step: int, kept: dict[str, Any]) -> None:
    """Other memory for one step, and then the old one again, as with averaged weights."""
    weight = model[0].weight  # type: ignore[index]
    if step == 3:
        kept["memory"], weight.data = weight.data, weight.data.clone() + 1.0
    elif step == 4:
        weight.data = kept.pop("memory")


def halved(model: nn.Module, step: int, kept: dict[str, Any]) -> None:
    if step == 3:
        model.half()
    elif step == 4:
        model.float()


def grown(model: nn.Module, step: int, kept: dict[str, Any]) -> None:
    if step == 3:
        kept["optimizer"].add_param_group({"params": [nn.Parameter(torch.ones(3, 3))]})
        model[1].extra = kept["optimizer"].param_groups[-1]["params"][0]  # type: ignore[index]


def frozen(model: nn.Module, step: int, kept: dict[str, Any]) -> None:
    model[0].bias.requires_grad_(step % 2 == 0)  # type: ignore[index]
    model[0].bias.grad = None  # type: ignore[index]


@pytest.mark.parametrize("change", [swapped, halved, grown, frozen])
def test_values_gradients_and_updates_are_those_of_the_parameters_as_they_are(change: Callable[..., None]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values: list[dict[str, float]] = []
    updates: list[dict[str, float]] = []
    kept: dict[str, Any] = {"optimizer": optimizer}

    def rms(tensors: dict[str, torch.Tensor]) -> dict[str, float]:
        return {name: float(tensor.double().square().mean().sqrt()) for name, tensor in tensors.items()}

    with hs.watch(model, optimizer, every=1, updates="full") as w:
        for step in range(8):
            change(model, step, kept)
            optimizer.zero_grad()
            model(torch.randn(5, 30).to(model[0].weight.dtype)).float().square().mean().backward()
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            values.append(rms(before))
            optimizer.step()
            updates.append(rms({name: p.detach().float() - before[name].float() for name, p in model.named_parameters()}))
    for name in values[0]:
        np.testing.assert_allclose(w.run[f"{name}:param", "rms"].values, [v[name] for v in values], rtol=1e-6)
        np.testing.assert_allclose(w.run[f"{name}:update", "rms"].values, [u[name] for u in updates], rtol=1e-4, atol=1e-9)
    assert not [e for e in w.run.events if e["event"] == "switched_off"]
