"""What watching costs: a training step with the default watch, over the same step without one.

Both steps alternate in one process, on two copies of one model that the same batch is given to, so that a machine that slows down slows
both; shown are the median and the 95th percentile of the ratios, in time of the processor used by this thread and in time of the clock.
One thread. `python benchmarks/watching.py --profile gpt` shows where the time of the watched steps goes instead.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import cProfile
import pstats
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import hookscope as hs
from hookscope._taps._events import _wiring

WARM, LEAST, MOST, ENOUGH_S = 5, 12, 200, 8.0


class Block(nn.Module):
    """A transformer block with normalisation before attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, heads, batch_first=True)
        self.between, self.act = nn.LayerNorm(width), nn.GELU()
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = self.before(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.narrow(self.act(self.wide(self.between(x))))


class GPT(nn.Module):
    """Four layers of width 128 over 96 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(256, 128), nn.Embedding(96, 128)
        self.blocks = nn.ModuleList(Block(128, 4) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        n = tokens.shape[1]
        x = self.token(tokens) + self.place(torch.arange(n))
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        for block in self.blocks:
            x = block(x, mask)
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
    """Eighteen layers, as for pictures of 32 x 32: 11.2 million parameters."""
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
}
VARIANTS: dict[str, dict[str, Any]] = {"default": {}, "every=10": {"every": 10}}


def trainer(case: Case) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """A model, its optimizer and a step."""
    torch.manual_seed(0)
    model, (x, label) = case.make(), case.batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(x), label).backward()
        optimizer.step()

    return model, optimizer, step


def timed(step: Callable[[], None]) -> tuple[float, float]:
    """Seconds: of the processor, of the clock."""
    clock, used = time.perf_counter(), time.thread_time()
    step()
    return time.thread_time() - used, time.perf_counter() - clock


def alternate(case: Case, how: dict[str, Any]) -> tuple[np.ndarray[Any, Any], hs.Run]:
    """[pairs, bare or watched, processor or clock], and the run."""
    _, _, bare = trainer(case)
    model, optimizer, watched = trainer(case)
    pairs: list[tuple[tuple[float, float], tuple[float, float]]] = []
    with hs.watch(model, optimizer, on_finding="ignore", **how) as watch:
        began = time.perf_counter()
        while len(pairs) < WARM + LEAST or (len(pairs) < MOST + WARM and time.perf_counter() - began < ENOUGH_S):
            with unheard():
                before = timed(bare)
            pairs.append((before, timed(watched)))
    return np.array(pairs[WARM:]), watch.run


class Deaf:
    """Listens to the process and heeds nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


DEAF = Deaf()


@contextmanager
def unheard() -> Iterator[None]:
    """A watch listens to the whole process: what happens inside is not told to it, nor noted as what is done outside models."""
    heard, _wiring.listeners = _wiring.listeners, [weakref.ref(DEAF)]
    try:
        with torch._C.DisableTorchFunction():
            yield
    finally:
        _wiring.listeners = heard


def table() -> None:
    """One line a model and variant."""
    print(f"torch {torch.__version__}, one thread; ratio watched : bare")
    print(f"{'model':8} {'variant':10} {'sites':>6} {'steps':>6} {'bare ms':>8} {'processor':>20} {'clock':>20}   spent by its own account")
    for name, case in CASES.items():
        for variant, how in VARIANTS.items():
            pairs, run = alternate(case, how)
            shown = [f"{np.median(r):8.3f} (p95 {np.percentile(r, 95):6.3f})" for r in (pairs[:, 1, i] / pairs[:, 0, i] for i in (0, 1))]
            bare = np.median(pairs[:, 0, 0]) * 1e3
            closed = run.events[-1]
            own = closed["spent_seconds"] / max(closed["steps"], 1) * 1e3
            print(
                f"{name:8} {variant:10} {len(run.sites):6} {len(pairs):6} {bare:8.2f} {shown[0]:>20} {shown[1]:>20}   {own:.2f} ms a step"
            )


def profile(name: str, variant: str = "default") -> None:
    """Of forty watched steps, the functions that take most of the time."""
    model, optimizer, step = trainer(CASES[name])
    with hs.watch(model, optimizer, on_finding="ignore", **VARIANTS[variant]):
        for _ in range(WARM):
            step()
        profiler = cProfile.Profile()
        profiler.enable()
        for _ in range(40):
            step()
        profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    if "--profile" in sys.argv:
        profile(*sys.argv[2:])
    else:
        table()
