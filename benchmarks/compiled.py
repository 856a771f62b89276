"""What watching costs a compiled training: steps, the first call, and graphs; the transformer of `watching.py`.

Steps with and without a watch alternate in one process on two copies of a model; shown are the median and the 95th percentile of their
ratios, in time of the processor. The first step is that of a model in a process of its own each, in time of the processor of that process
and of the compilers that it starts, without a cache on disk. One thread.

`python benchmarks/compiled.py inductor first` measures the one, `python benchmarks/compiled.py inductor steps` the other.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from watching import CASES, Stopwatch

import hookscope as hs
from hookscope._watch import _pace

PAIRS, WARM, OF_FIRST = 80, 8, 1
VARIANTS: dict[str, dict[str, Any]] = {"default": {}, "every=1": {"every": 1}}


def training(backend: str, how: dict[str, Any] | None) -> tuple[Callable[[], None], Any]:
    """A step of the compiled model, and the watch on it, if it is to be watched."""
    torch.manual_seed(0)
    model, (x, label) = CASES["gpt"].make(), CASES["gpt"].batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    watch = nullcontext() if how is None else hs.watch(model, optimizer, on_finding="ignore", **how)
    compiled = torch.compile(model, backend=backend, fullgraph=True)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(compiled(x), label).backward()
        optimizer.step()

    return step, watch


def used() -> float:
    """Seconds of the processor so far: of this process, and of those it has started."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def first(backend: str, *, watched: bool) -> None:
    """Seconds of the first step, and graphs. Something else is compiled before, so that loading the compiler is no part of it."""
    torch.compile(torch.sin, backend=backend)(torch.ones(3))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    step, watch = training(backend, {"every": 1} if watched else None)
    with watch:
        began = used()
        step()
        seconds = used() - began
    sys.stdout.write(f"{seconds} {torch._dynamo.utils.counters['stats']['unique_graphs']}\n")


def compare_first(backend: str) -> None:
    """Medians over processes, bare and watched in turn."""
    seconds: dict[str, list[float]] = {"bare": [], "watched": []}
    variables = {**os.environ, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    for _ in range(OF_FIRST):
        for what, found in seconds.items():
            command = [sys.executable, "-W", "ignore", __file__, backend, what]
            told = subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout.split()
            found.append(float(told[0]))
            print(f"first step, {what}: {found[-1]:.1f} s, {told[1]} graphs", flush=True)
    print(f"first step, watched : bare: {np.median(seconds['watched']) / np.median(seconds['bare']):.2f}")


def ratios(backend: str, how: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Watched over bare, a step each."""
    bare, _ = training(backend, None)
    step, watch = training(backend, how)
    stopwatch, pairs = Stopwatch(), []
    with patch.object(_pace, "OPENING_S", 0.0), watch:
        watch._session.pace.clock = stopwatch
        for _ in range(PAIRS + WARM):
            with stopwatch.stopped():
                before = timed(bare)
            pairs.append((before, timed(step)))
        print(f"{len(watch.run.steps)} of {watch.step} steps recorded")
    kept = np.array(pairs[WARM:])
    return kept[:, 1] / kept[:, 0]


def timed(step: Callable[[], None]) -> float:
    """Seconds of the processor."""
    began = time.thread_time()
    step()
    return time.thread_time() - began


def compare_steps(backend: str) -> None:
    """One line a variant."""
    for name, how in VARIANTS.items():
        torch._dynamo.reset()
        found = ratios(backend, how)
        print(f"{name:10} median {np.median(found):.3f}, mean {found.mean():.3f}, p95 {np.percentile(found, 95):.3f}", flush=True)


if __name__ == "__main__":
    backend, what = (*sys.argv[1:], "inductor", "steps")[:2]
    if what in ("bare", "watched"):
        first(backend, watched=what == "watched")
    else:
        print(f"torch {torch.__version__}, {backend}, one thread")
        compare_first(backend) if what == "first" else compare_steps(backend)
