"""What it costs to be ready to name an origin, while nothing is wrong: a watched step with that, one whose watch keeps no records for it,
and the bare step.

The three alternate in one process, each in four trainings of its own, in random order, in steps that the watch leaves out, as nearly all
are once its opening is over: two trainings that do the same differ by where their memory lies. Shown are, in milliseconds of the processor
used by this thread, means over the four of the medians of their steps; what naming adds to a watched step, with the standard error that the
four differences have, and over the bare step; and what the watch adds altogether. One thread.

`python benchmarks/origin.py small --rounds 400` measures one model longer; with `--profile` it shows where the time goes instead.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import cProfile
import pstats
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import torch
from _trainings import CASES, Case
from torch import nn
from watching import DEAF, trainer

import hookscope as hs
from hookscope._taps._events import _wiring
from hookscope._watch import _pace

WARM, COPIES, ROUNDS = 20, 4, {"small": 250, "short": 250, "gpt": 40}


def small() -> nn.Module:
    """A step of somewhat above a millisecond: normalisation with buffers, dropout, twenty modules."""
    parts = [nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1)) for _ in range(5)]
    return nn.Sequential(*parts, nn.Linear(64, 10))


MODELS = {"small": Case(small, lambda: (torch.randn(32, 64), torch.randint(10, (32,)))), "short": CASES["short"], "gpt": CASES["gpt"]}


@dataclass
class Watched:
    """A training under its own watch, which hears of nothing but its own steps; or under none."""

    step: Callable[[], None]
    watch: hs.watch | None = None
    noting: bool = False  # its mode was in place at the end of its last step

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other watch hears of what happens inside, nor has its mode in place."""
        heard = _wiring.listeners
        session = None if self.watch is None else self.watch._session
        _wiring.listen([weakref.ref(DEAF)] if session is None else [ref for ref in heard if ref() is session])
        if session is not None and self.noting:
            session.locator.region.resume()
        try:
            yield
        finally:
            if session is not None:
                self.noting = session.locator.region.noting
                session.locator.region.pause()
            _wiring.listen(heard)


def watched(case: Case, *, ready: bool) -> Watched:
    """`ready` to name an origin, or not."""
    model, optimizer, step = trainer(case)
    with patch.object(_pace, "OPENING_S", 0.0):
        watch = hs.watch(model, optimizer, on_finding="ignore")
    watch._session.pace._decide = lambda step: step < 3  # type: ignore[method-assign]  # the rest is left out
    if not ready:
        watch._session.locator.close()
    return Watched(step, watch)


def timed(training: Watched) -> float:
    """Milliseconds of a step."""
    with training.alone():
        used = time.thread_time()
        training.step()
        return (time.thread_time() - used) * 1e3


def measured(case: Case, rounds: int) -> np.ndarray:
    """[bare, looking, naming; copy] in milliseconds: medians of so many steps."""
    with ExitStack() as stack:
        trainings = []
        for ready in (None, False, True):
            for _ in range(COPIES):
                trainings.append(Watched(trainer(case)[2]) if ready is None else watched(case, ready=ready))
                if (watch := trainings[-1].watch) is not None:
                    stack.callback(watch.close)
        times, order = np.empty((WARM + rounds, len(trainings))), np.random.default_rng(0)
        for row in times:
            for which in order.permutation(len(trainings)):
                row[which] = timed(trainings[which])
        return np.median(times[WARM:], axis=0).reshape(3, COPIES)


def line(name: str, rounds: int) -> str:
    """Of one model."""
    times = measured(MODELS[name], rounds)
    bare, looking, naming = times.mean(axis=1)
    error = np.hypot(*(times[1:].std(axis=1, ddof=1) / COPIES**0.5))
    more = f"{naming - looking:8.3f} ± {error:.3f} {1 + (naming - looking) / bare:8.3f} {naming - bare:8.3f} {naming / bare:8.3f}"
    return f"{name:8} {bare:8.3f} {looking:8.3f} {more}"


def table(names: list[str], rounds: int | None) -> None:
    """One line a model."""
    print(f"torch {torch.__version__}, one thread, milliseconds; naming: a watched step with it less one without")
    print(f"{'model':8} {'bare':>8} {'looking':>8} {'naming':>16} {':bare':>8} {'watch':>8} {':bare':>8}")
    for name in names:
        print(line(name, rounds or ROUNDS[name]), flush=True)


def profile(name: str) -> None:
    """Of four hundred watched steps, the functions that take most of the time."""
    training = watched(MODELS[name], ready=True)
    for _ in range(WARM):
        training.step()
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(400):
        training.step()
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    if asked.profile:
        profile(asked.models[0])
    else:
        table(asked.models, asked.rounds)
