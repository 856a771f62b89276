"""What it costs to be ready to name an origin, while nothing is wrong: a watched step, over one whose watch keeps no records for that.

Both steps alternate in one process, on two copies of one model that the same batch is given to; shown are medians, in time of the
processor used by this thread. One thread. `python benchmarks/origin.py --profile small` shows where the time goes instead.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import cProfile
import pstats
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from _trainings import CASES, Case
from torch import nn
from watching import trainer

import hookscope as hs
from hookscope._taps._events import _wiring

WARM, PAIRS = 10, 150


def small() -> nn.Module:
    """A step of somewhat above a millisecond: normalisation with buffers, dropout, twenty modules."""
    parts = [nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1)) for _ in range(5)]
    return nn.Sequential(*parts, nn.Linear(64, 10))


MODELS = {"small": Case(small, lambda: (torch.randn(32, 64), torch.randint(10, (32,)))), "gpt": CASES["gpt"]}


@dataclass
class Watched:
    """A training under its own watch, which hears of nothing but its own steps."""

    watch: hs.watch
    step: Callable[[], None]
    noting: bool = False  # its mode was in place at the end of its last step

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other watch hears of what happens inside, nor has its mode in place."""
        region, heard = self.watch._session.locator.region, _wiring.listeners
        _wiring.listeners = [ref for ref in heard if ref() is self.watch._session]
        if self.noting:
            region.resume()
        try:
            yield
        finally:
            self.noting = region.noting
            region.pause()
            _wiring.listeners = heard


def watched(case: Case, *, ready: bool) -> Watched:
    """`ready` to name an origin, or not."""
    model, optimizer, step = trainer(case)
    watch = hs.watch(model, optimizer, on_finding="ignore")
    if not ready:
        watch._session.locator.close()
    return Watched(watch, step)


def timed(training: Watched) -> float:
    """Milliseconds of a step."""
    with training.alone():
        used = time.thread_time()
        training.step()
        return (time.thread_time() - used) * 1e3


def table() -> None:
    """One line a model."""
    print(f"torch {torch.__version__}, one thread, {PAIRS} pairs of steps")
    print(f"{'model':8} {'without ms':>11} {'with ms':>9} {'difference ms':>14} {'ratio':>7}")
    for name, case in MODELS.items():
        trainings = watched(case, ready=False), watched(case, ready=True)
        pairs = np.array([[timed(training) for training in trainings] for _ in range(WARM + PAIRS)])[WARM:]
        without, ready = np.median(pairs, axis=0)
        difference, ratio = np.median(pairs[:, 1] - pairs[:, 0]), np.median(pairs[:, 1] / pairs[:, 0])
        print(f"{name:8} {without:11.3f} {ready:9.3f} {difference:14.3f} {ratio:7.3f}")
        for training in trainings:
            training.watch.close()


def profile(name: str) -> None:
    """Of two hundred watched steps, the functions that take most of the time."""
    training = watched(MODELS[name], ready=True)
    for _ in range(WARM):
        training.step()
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(200):
        training.step()
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats("_origin|_locating|random|get_rng|_version")


if __name__ == "__main__":
    if "--profile" in sys.argv:
        profile(sys.argv[-1])
    else:
        table()
