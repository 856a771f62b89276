"""Modules that return what hooks seldom see: views, tuples, their own input, halves."""

from __future__ import annotations

import torch
from torch import nn

KINDS = ["linear", "bare", "inplace", "same", "box", "twice", "pair", "turned", "flat", "frozen", "half", "infinite", "quiet"]


class Odd(nn.Module):
    """What torch's containers, views, tuples, in-place layers and layouts give hooks to see."""

    def __init__(self, parts: list[str]) -> None:
        super().__init__()
        made = {
            "linear": lambda: nn.Linear(6, 6),
            "bare": lambda: nn.Linear(6, 6, bias=False),
            "inplace": lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True)),
            "same": nn.Identity,
            "box": lambda: nn.Sequential(nn.Tanh()),
            "twice": Twice,
            "pair": Pair,
            "turned": Turned,
            "flat": Flat,
            "frozen": lambda: nn.Linear(6, 6).requires_grad_(False),
            "half": Half,
            "infinite": Infinite,
            "quiet": Quiet,
        }
        self.parts = nn.ModuleList(made[part]() for part in parts)
        self.head = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            given = part(x)
            x = given[0] if isinstance(given, tuple) else given
            x = x.reshape(*x.shape[:2], 6)
        return self.head(x)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.Softplus()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.act(x))


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None, torch.Tensor]:
        return x * 2, None, x


class Turned(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 1.5).transpose(0, 1).contiguous().transpose(0, 1)


class Flat(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).unflatten(1, x.shape[1:])


class Half(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.bfloat16().float()


class Infinite(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (x != x.max())


class Quiet(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return x + 1
