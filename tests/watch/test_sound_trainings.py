"""Sound nets that learn: three hundred steps without one warning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs


def convnet() -> nn.Module:
    torch.manual_seed(1)
    body = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    return nn.Sequential(nn.Unflatten(1, (1, 8)), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def transformer() -> nn.Module:
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(8, 16), encoder, nn.Flatten(), nn.Linear(128, 4))


class LSTM(nn.Module):
    def __init__(self) -> None:
        torch.manual_seed(1)
        super().__init__()
        self.cell, self.out = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cell(x)[0][:, -1])


def deep() -> nn.Module:
    torch.manual_seed(1)
    blocks = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())]
    return nn.Sequential(nn.Flatten(), *blocks, nn.Linear(64, 4))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "optimizer"),
    [(convnet, torch.optim.SGD), (transformer, torch.optim.AdamW), (LSTM, torch.optim.Adam), (deep, torch.optim.RMSprop)],
)
def test_three_hundred_steps_of_a_sound_net_raise_nothing(make: Callable[[], nn.Module], optimizer: Any) -> None:
    """Eight by eight numbers, of four classes that differ in their mean rows: learnt within the run, with noise enough to go on."""
    model, rng = make(), torch.Generator().manual_seed(0)
    centres = torch.randn(4, 8, 8, generator=rng)
    stepper = optimizer(model.parameters(), lr=0.05 if optimizer is torch.optim.SGD else 1e-3)
    losses = []
    with hs.watch(model, stepper, on_finding="raise") as watched:
        for _ in range(300):
            label = torch.randint(4, (16,), generator=rng)
            x = centres[label] + torch.randn(16, 8, 8, generator=rng)
            loss = nn.functional.cross_entropy(model(x), label)
            stepper.zero_grad()
            loss.backward()
            stepper.step()
            losses.append(loss.item())
    assert sum(losses[-20:]) < 0.6 * sum(losses[:20])
    assert [f for f in watched.findings if f.severity != "info"] == []
