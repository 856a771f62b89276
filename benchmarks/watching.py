"""What watching costs: a training step that is watched, over the same step without that, in four ways of watching.

Both steps alternate in one process, now the one first and now the other, on two copies of one model that the same batch is given to, so
that a machine that slows down slows both. Shown are the median and the 95th percentile of the ratios and the ratio of the sums, in time of
the processor used by this thread, and the median in time of the clock. One thread. The rows of a model:

- `nothing`: the same step twice, which shows how far the numbers can be trusted
- `empty hooks`: as many hooks as a watch places, none of which does anything
- `look only`: a step that a watch leaves out; loss, model output and gradients are looked at
- `default`: the default watch after the opening second, in which it records every step
- `every=1`: everything recorded at each step

`python benchmarks/watching.py --models gpt lstm --seconds 10` measures some of it longer;
`python benchmarks/watching.py --profile gpt` shows where the time of recorded steps goes instead.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import cProfile
import pstats
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from _trainings import CASES, Case
from torch import nn
from torch.nn.functional import cross_entropy

import hookscope as hs
from hookscope._taps._events import _wiring
from hookscope._taps._leaves import leaves
from hookscope._watch import _pace

WARM, LEAST, ENOUGH_S = 6, 12, 3.0


@dataclass
class Loop:
    """A training; `around` and `after_backward` are what a tool asks its user to write into it, `aside` hides other steps
    from it, and `note` is what it says of itself.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], torch.Tensor]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    after_backward: Callable[[torch.Tensor], Any] = lambda _: None
    aside: Callable[[], AbstractContextManager[Any]] = nullcontext
    note: Callable[[], str] = str

    def step(self) -> None:
        """One step of it."""
        self.optimizer.zero_grad()
        with self.around():
            loss = self.loss()
            loss.backward()
        self.after_backward(loss)
        self.optimizer.step()


def loop(case: Case) -> Loop:
    """A fresh model on its batch."""
    torch.manual_seed(0)
    model, (x, label) = case.make(), case.batch()
    return Loop(model, torch.optim.AdamW(model.parameters(), lr=1e-4), lambda: cross_entropy(model(x), label))


def trainer(case: Case) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """A model, its optimizer and a step."""
    made = loop(case)
    return made.model, made.optimizer, made.step


Tool = Callable[[Loop], AbstractContextManager[Any]]
Pairs = np.ndarray[Any, Any]


def alternate(case: Case, tool: Tool, enough: float = ENOUGH_S) -> tuple[Pairs, str]:
    """[pairs, bare or with the tool, processor or clock] in seconds, from `enough` seconds of the processor; and the tool's note."""
    bare, tooled = loop(case), loop(case)
    pairs: list[tuple[tuple[float, float], tuple[float, float]]] = []
    with tool(tooled):
        began = time.thread_time()
        while len(pairs) < WARM + LEAST or time.thread_time() - began < enough:
            if len(pairs) % 2:
                after = timed(tooled.step)
            with tooled.aside():
                before = timed(bare.step)
            if not len(pairs) % 2:
                after = timed(tooled.step)
            pairs.append((before, after))
        return np.array(pairs[WARM:]), tooled.note()


def timed(step: Callable[[], None]) -> tuple[float, float]:
    """Seconds: of the processor, of the clock."""
    clock, used = time.perf_counter(), time.thread_time()
    step()
    return time.thread_time() - used, time.perf_counter() - clock


class Deaf:
    """Listens to the process and heeds nothing."""

    shortcut = None

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


class Stopwatch:
    """A clock that stands still while other steps run: a budget is a share of the time of the steps that are watched."""

    def __init__(self) -> None:
        self.aside = 0

    def __call__(self) -> int:
        return time.perf_counter_ns() - self.aside

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """While other steps run, which no watch hears of."""
        began = time.perf_counter_ns()
        with unheard():
            yield
        self.aside += time.perf_counter_ns() - began


@contextmanager
def watched(it: Loop, *, never: bool = False, **how: Any) -> Iterator[hs.watch]:
    """Under a watch that has no opening; `never` records no step after the third."""
    stopwatch = Stopwatch()
    it.aside = stopwatch.stopped
    with patch.object(_pace, "OPENING_S", 0.0), hs.watch(it.model, it.optimizer, on_finding="ignore", **how) as watch:
        pace = watch._session.pace
        pace.clock = stopwatch
        if never:
            pace._decide = lambda step: step < 3  # type: ignore[method-assign]  # to measure a step that is left out
        it.note = lambda: f"{len(watch.run.sites)} sites, {len(watch.run.steps)} of {watch.step} steps"
        yield watch


@contextmanager
def empty_hooks(it: Loop) -> Iterator[None]:
    """One on each module, on each output that has a gradient, before and after the optimizer's step."""

    def forward(_module: nn.Module, _inputs: Any, output: Any) -> None:
        for _, tensor in leaves(output):
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(lambda _: None)

    handles = [module.register_forward_hook(forward) for module in it.model.modules()]
    handles += [it.optimizer.register_step_pre_hook(lambda *_: None), it.optimizer.register_step_post_hook(lambda *_: None)]
    yield
    for handle in handles:
        handle.remove()


WAYS: dict[str, Tool] = {
    "nothing": lambda _: nullcontext(),
    "empty hooks": empty_hooks,
    "look only": partial(watched, never=True),
    "default": watched,
    "every=1": partial(watched, every=1),
}


def arguments() -> argparse.Namespace:
    """What is measured, and for how long."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=ENOUGH_S, help="of the processor, a row")
    parser.add_argument("--profile", choices=CASES)
    return parser.parse_args()


def table(tools: Mapping[str, Tool], models: list[str], seconds: float) -> None:
    """One line a model and tool."""
    print(f"torch {torch.__version__}, one thread; a step with the tool : the same step without it")
    print(f"{'':33}{'processor':^29}  {'clock':>7}")
    print(f"{'model':7} {'tool':24} {'median':>9} {'p95':>9} {'of all':>9}  {'median':>7} {'pairs':>6} {'bare ms':>8}")
    for name in models:
        for tool, attach in tools.items():
            try:
                pairs, note = alternate(CASES[name], attach, seconds)
            except ImportError as missing:
                print(f"{name:7} {tool:24} not installed: {missing.name}")
                continue
            used, passed = (pairs[:, 1, i] / pairs[:, 0, i] for i in (0, 1))
            whole = pairs[:, 1, 0].sum() / pairs[:, 0, 0].sum()
            shown = f"{np.median(used):9.3f} {np.percentile(used, 95):9.3f} {whole:9.3f}  {np.median(passed):7.3f}"
            print(f"{name:7} {tool:24} {shown} {len(pairs):6} {np.median(pairs[:, 0, 0]) * 1e3:8.2f}  {note}", flush=True)


def profile(name: str) -> None:
    """Of forty recorded steps, the functions that take most of the time."""
    it = loop(CASES[name])
    with watched(it, every=1):
        for _ in range(WARM):
            it.step()
        profiler = cProfile.Profile()
        profiler.enable()
        for _ in range(40):
            it.step()
        profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    asked = arguments()
    if asked.profile:
        profile(asked.profile)
    else:
        table(WAYS, asked.models, asked.seconds)
