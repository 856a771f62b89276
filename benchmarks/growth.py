"""How the cost of a watched step grows with what is watched: microseconds a site, nanoseconds an element.

A step with the watch and the same step without it alternate, as in `watching.py`, for models of three sizes that differ in one thing: the
number of small layers, the elements of each activation, the elements of each weight. Shown are the medians of the differences, in time of
the processor used by this thread, and the slope of the line through them. One thread. `--seconds 10` measures longer.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from _trainings import Case
from torch import nn
from watching import WAYS, alternate, arguments, loop, watched


def chain(layers: int) -> Case:
    """Small layers, each with its activation."""
    parts = [part for _ in range(layers) for part in (nn.Linear(16, 16), nn.Tanh())]
    return Case(lambda: nn.Sequential(*parts), lambda: (torch.randn(4, 16), torch.randint(10, (4,))))


def sites(layers: int) -> int:
    """As many as a watch has recorded."""
    it = loop(chain(layers))
    with watched(it, every=1) as watch:
        for _ in range(3):
            it.step()
        return len(watch.run.sites)


def activations(elements: int) -> Case:
    """Eight activations of so many elements each, and as many gradients."""
    parts = [nn.Linear(64, 64), *(nn.Tanh() for _ in range(8))]
    rows = elements // 64
    return Case(lambda: nn.Sequential(*parts), lambda: (torch.randn(rows, 64), torch.randint(10, (rows,))))


def weights(elements: int) -> Case:
    """Eight square weights of so many elements each, and as many gradients."""
    width = round(elements**0.5)
    parts = [nn.Linear(width, width, bias=False) for _ in range(8)]
    return Case(lambda: nn.Sequential(*parts), lambda: (torch.randn(1, width), torch.randint(10, (1,))))


@dataclass(frozen=True)
class Growth:
    """Cases of growing size; `amount` is what there is of the thing that grows."""

    thing: str
    case: Callable[[int], Case]
    sizes: tuple[int, ...]
    amount: Callable[[int], int]
    unit: tuple[str, float]


GROWTHS = (
    Growth("sites", chain, (10, 50, 200), sites, ("us a site", 1e6)),
    Growth(
        "elements of activations and their gradients", activations, (1 << 12, 1 << 16, 1 << 19), lambda n: 18 * n, ("ns an element", 1e9)
    ),
    Growth("elements of weights and their gradients", weights, (1 << 12, 1 << 16, 1 << 19), lambda n: 16 * n, ("ns an element", 1e9)),
)


def table(seconds: float) -> None:
    """One block a thing that grows."""
    print(f"torch {torch.__version__}, one thread; milliseconds that the way of watching adds to a step")
    for growth in GROWTHS:
        amounts = [growth.amount(size) for size in growth.sizes]
        print(f"{growth.thing:44}" + "".join(f"{amount:>12,}" for amount in amounts))
        for way in ("empty hooks", "look only", "every=1"):
            added = [np.median(np.diff(alternate(growth.case(size), WAYS[way], seconds)[0][:, :, 0])) for size in growth.sizes]
            slope = np.polyfit(amounts, added, 1)[0] * growth.unit[1]
            print(f"  {way:42}" + "".join(f"{a * 1e3:12.3f}" for a in added) + f"   {slope:.3f} {growth.unit[0]}", flush=True)


if __name__ == "__main__":
    table(arguments().seconds)
