"""The models of the sound trainings."""

from __future__ import annotations

import torch
from torch import nn


def batch(rows: int = 16, width: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    label = torch.randint(4, (rows,))
    return torch.randn(rows, width) + label[:, None] * torch.linspace(-1, 1, width), label


def mlp(*act: nn.Module, depth: int = 3, width: int = 24) -> nn.Sequential:
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), *(act or (nn.ReLU(),)))]
    return nn.Sequential(nn.Linear(8, width), *layers, nn.Linear(width, 4))


class Rezero(nn.Module):
    """Residual branches that begin at exactly 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(8, 16), nn.Linear(16, 4)
        self.branches = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)) for _ in range(3))
        self.gates = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for branch, gate in zip(self.branches, self.gates, strict=True):
            x = x + gate * branch(x)
        return self.out(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cell(x[:, None].expand(-1, 12, -1))[0][:, -1])


class Masked(nn.Module):
    """Attention whose first padded batch comes late, with a finite mask that is added."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Linear(2, 16), nn.Linear(16, 48), nn.Linear(16, 4)
        self.scores = nn.Identity()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        q, k, v = self.qkv(self.embed(x.view(-1, 4, 2))).chunk(3, -1)
        keep = torch.ones(4) if self.calls < 20 else torch.tensor([1.0, 1, 1, 0])
        return self.out((self.scores(q @ k.mT / 4 + (1 - keep) * -1e9).softmax(-1) @ v).mean(1))


class LayerDrop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(8, 16), nn.Linear(16, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x) * (float(torch.rand(()) > 0.3))
        return self.out(x)


class Experts(nn.Module):
    """Each sample goes to one of six experts: some get none for many steps."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 6), nn.ModuleList(nn.Linear(8, 4) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = x.new_zeros(len(x), 4)
        for i, expert in enumerate(self.experts):
            out = out + torch.where((chosen == i)[:, None], expert(x), 0.0)
        return out * weight[:, None]


class Scheduled(nn.Module):
    """A branch that is faded out, and then left away."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.aside, self.share = mlp(), mlp(), 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.main(x) + self.share * self.aside(x)
