"""What streaming features to disk costs: 256 images through a ResNet-like net, two layers, 41 MB, beside a bare loop and raw hooks.

Each way is run next to a bare loop, before it and after it in turn, in rounds. Shown is the median of the ratios of such pairs in time of
this thread on the processor, since a busy machine stretches the clock, with the quartiles; then the same ratio for all threads together
(Parquet is written by one of its own), and the medians of both times. Bare computes and keeps nothing; raw hooks write into one
preallocated memory map a layer, without names, ids, commits or checks.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import hookscope as hs

IMAGES, BATCH, WIDTH, ROUNDS = 256, 16, 32, 10
LAYERS = ("layer1", "layer3")


class Block(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.bn2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.skip = nn.Identity() if stride == 1 else nn.Conv2d(inner, outer, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + self.skip(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, 1, 1)
        self.layer1 = nn.Sequential(Block(WIDTH, WIDTH, 1), Block(WIDTH, WIDTH, 1))
        self.layer2 = nn.Sequential(Block(WIDTH, 2 * WIDTH, 2), Block(2 * WIDTH, 2 * WIDTH, 1))
        self.layer3 = nn.Sequential(Block(2 * WIDTH, 4 * WIDTH, 2), Block(4 * WIDTH, 4 * WIDTH, 1))
        self.layer4 = nn.Sequential(Block(4 * WIDTH, 8 * WIDTH, 2), Block(8 * WIDTH, 8 * WIDTH, 1))
        self.head = nn.Linear(8 * WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer4(self.layer3(self.layer2(self.layer1(self.stem(x))))).mean((2, 3)))


def bare(model: nn.Module, batches: list[torch.Tensor], _to: Path) -> None:
    with torch.no_grad():
        for batch in batches:
            model(batch)


def raw_hooks(model: nn.Module, batches: list[torch.Tensor], to: Path) -> None:
    maps: dict[str, np.memmap] = {}
    taken: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        return lambda _module, _args, out: taken.__setitem__(name, out)

    handles = [getattr(model, name).register_forward_hook(keep(name)) for name in LAYERS]
    with torch.no_grad():
        for number, batch in enumerate(batches):
            model(batch)
            for name, out in taken.items():
                if name not in maps:
                    maps[name] = np.lib.format.open_memmap(to / f"{name}.npy", "w+", np.float32, (IMAGES, *out.shape[1:]))
                maps[name][number * BATCH : (number + 1) * BATCH] = out.numpy()
    for handle in handles:
        handle.remove()


def streamed(storage: str) -> Callable[[nn.Module, list[torch.Tensor], Path], None]:
    def run(model: nn.Module, batches: list[torch.Tensor], to: Path) -> None:
        features = hs.extract(model, batches, list(LAYERS), to=hs.Store(to / "f", storage=storage, progress=False), stop=False)
        assert features.samples == IMAGES

    return run


WAYS = {
    "bare, against itself": bare,
    "raw hooks, memory map": raw_hooks,
    "hookscope, npy": streamed("npy"),
    "hookscope, safetensors": streamed("safetensors"),
    "hookscope, parquet": streamed("parquet"),
}


def seconds(way: Callable[..., None], model: nn.Module, batches: list[torch.Tensor], root: Path) -> tuple[float, float, float]:
    """Of this thread on the processor, of all threads, and by the clock."""
    with tempfile.TemporaryDirectory(dir=root) as to:
        used, together, clock = time.thread_time(), time.process_time(), time.perf_counter()
        way(model, batches, Path(to))
        return time.thread_time() - used, time.process_time() - together, time.perf_counter() - clock


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, batches = Net().eval(), list(torch.randn(IMAGES, 3, 32, 32).split(BATCH))
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.gettempdir())
    taken = hs.extract(model, batches[0], list(LAYERS))
    print(f"{sum(t.nbytes for t in taken.values()) * IMAGES / BATCH / 1e6:.0f} MB of features")
    pairs: dict[str, list[tuple[float, ...]]] = {name: [] for name in WAYS}
    for number in range(ROUNDS + 1):
        for name, way in WAYS.items():
            order = (bare, way) if number % 2 else (way, bare)
            both = [seconds(one, model, batches, root) for one in order]
            (alone, all_alone, _), (used, together, clock) = both if number % 2 else both[::-1]
            pairs[name].append((used / alone, together / all_alone, used, clock))
    print(f"{'way':24}{'ratio':>6}   quartiles      all threads   processor   clock")
    for name, runs in pairs.items():  # the first round warms up
        low, middle, high = np.percentile([ratio for ratio, *_ in runs[1:]], [25, 50, 75])
        together, used, clock = (statistics.median(column) for column in list(zip(*runs[1:], strict=True))[1:])
        print(f"{name:24}{middle:6.2f}   {low:.2f} to {high:.2f}   {together:11.2f}   {used:7.3f} s   {clock:6.3f} s")


if __name__ == "__main__":
    main()
