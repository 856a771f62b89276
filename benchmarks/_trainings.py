"""The models whose steps are measured, each with its batch; no program of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


class Block(nn.Module):
    """A transformer block with normalisation before attention and MLP.

    Its mask is a buffer, since `DebugUnderflowOverflow` stops at the infinities of one that a module is called with.
    """

    mask: torch.Tensor

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))
        self.before, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, heads, batch_first=True)
        self.between, self.act = nn.LayerNorm(width), nn.GELU()
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.before(x)
        x = x + self.attention(h, h, h, attn_mask=self.mask, need_weights=False)[0]
        return x + self.narrow(self.act(self.wide(self.between(x))))


class GPT(nn.Module):
    """Four layers of width 128 over 96 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(256, 128), nn.Embedding(96, 128)
        self.blocks = nn.ModuleList(Block(128, 4, 96) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


class Residual(nn.Module):
    """A basic block of a ResNet."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.one, self.norm1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside)
        self.two, self.norm2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside)
        self.act, self.short = nn.ReLU(inplace=True), nn.Identity()
        if stride > 1 or inside != outside:
            self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.norm2(self.two(self.act(self.norm1(self.one(x))))) + self.short(x))


def resnet() -> nn.Module:
    """Eighteen layers, for pictures of 32 x 32: 11.2 million parameters."""
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    return nn.Sequential(*stem, *(Residual(*w) for w in widths), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class LSTM(nn.Module):
    """Two layers of width 128 over 64 time steps."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.cell, self.head = nn.Embedding(256, 128), nn.LSTM(128, 128, 2, batch_first=True), nn.Linear(128, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(self.token(tokens))[0]).flatten(0, 1)


def tiny() -> nn.Module:
    """Two hundred layers of width 32, each with its activation: nothing but overhead."""
    return nn.Sequential(*(m for _ in range(200) for m in (nn.Linear(32, 32), nn.Tanh())), nn.Linear(32, 10))


def short() -> nn.Module:
    """Eight layers of width 64, each with its activation: a step of two milliseconds."""
    return nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(64, 64), nn.Tanh())), nn.Linear(64, 10))


@dataclass(frozen=True)
class Case:
    """A model, and a batch with its labels."""

    make: Callable[[], nn.Module]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]


def tokens(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ones, and the next ones."""
    drawn = torch.randint(256, shape)
    return drawn, drawn.roll(-1, 1).flatten()


CASES = {
    "gpt": Case(GPT, lambda: tokens(4, 96)),
    "resnet": Case(resnet, lambda: (torch.randn(32, 3, 32, 32), torch.randint(10, (32,)))),
    "lstm": Case(LSTM, lambda: tokens(16, 64)),
    "tiny": Case(tiny, lambda: (torch.randn(16, 32), torch.randint(10, (16,)))),
    "short": Case(short, lambda: (torch.randn(64, 64), torch.randint(10, (64,)))),
}
