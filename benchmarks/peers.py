"""What other tools cost on the steps that `watching.py` measures: each beside the same step without it, in one process.

Each is used as its own documentation shows; what it writes goes to a directory that is removed again. A tool that is not installed has a
row that says so: `pip install -e '.[bench]'` installs them. What a tool does in another process (wandb) is not in the time of this
thread, only in that of the clock. The rows of a model:

- `tutorial`: the hooks of most tutorials, `output.norm().item()` of each module and `grad.norm().item()` of each parameter
- `anomaly mode`: `torch.autograd.detect_anomaly`
- `DebugUnderflowOverflow`: of transformers
- `wandb`: `run.watch(model, log="all")` offline, with histograms at each or at every 1000th step (the default), and `run.log` of the loss
- `ormas-monitor`: looks at every 50th step (its default), or at each
- `trainscope`: as it comes
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from watching import Loop, Tool, arguments, table


@contextmanager
def tutorial(it: Loop) -> Iterator[None]:
    """A number a module and a parameter, fetched at once."""
    norms: dict[str, list[float]] = {}

    def forward(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            norms.setdefault(name, []).append(output.norm().item())

    def backward(name: str, grad: torch.Tensor) -> None:
        norms.setdefault(name + ".grad", []).append(grad.norm().item())

    handles = [module.register_forward_hook(partial(forward, name)) for name, module in it.model.named_modules()]
    handles += [parameter.register_hook(partial(backward, name)) for name, parameter in it.model.named_parameters()]
    yield
    for handle in handles:
        handle.remove()


@contextmanager
def anomaly(it: Loop) -> Iterator[None]:
    """Around forward and backward."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Anomaly Detection")
        it.around = torch.autograd.detect_anomaly
        yield


@contextmanager
def underflow_overflow(it: Loop) -> Iterator[None]:
    """Reads the least and the largest absolute value of what each module takes and returns."""
    from transformers.debug_utils import DebugUnderflowOverflow

    kept = DebugUnderflowOverflow(it.model)
    yield
    del kept


@contextmanager
def wandb(it: Loop, *, log_freq: int) -> Iterator[None]:
    """Histograms of parameters and gradients."""
    import wandb as tool

    with tempfile.TemporaryDirectory() as place:
        run = tool.init(mode="offline", dir=place, settings=tool.Settings(silent=True))
        run.watch(it.model, log="all", log_freq=log_freq)
        it.after_backward = lambda loss: run.log({"loss": loss.item()})
        yield
        run.unwatch(it.model)
        run.finish()


@contextmanager
def ormas(it: Loop, *, check_every: int) -> Iterator[None]:
    """Told of each step after its backward."""
    from ormas_monitor import Monitor

    with tempfile.TemporaryDirectory() as place:
        monitor = Monitor(it.model, it.optimizer, out=Path(place, "run"), check_every=check_every, verbose=False)
        it.after_backward = monitor.step
        yield
        monitor.close()


@contextmanager
def trainscope(it: Loop) -> Iterator[None]:
    """Told of each step after its backward."""
    from trainscope import TrainScope
    from trainscope.core.config import TrainScopeConfig

    logging.getLogger("trainscope").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as place:
        scope = TrainScope(it.model, it.optimizer, config=TrainScopeConfig(run_dir=place)).attach()
        it.after_backward = lambda loss: scope.step(loss.item())
        yield
        scope.detach()


TOOLS: dict[str, Tool] = {
    "tutorial": tutorial,
    "anomaly mode": anomaly,
    "DebugUnderflowOverflow": underflow_overflow,
    "wandb, each step": partial(wandb, log_freq=1),
    "wandb, every 1000th": partial(wandb, log_freq=1000),
    "ormas-monitor": partial(ormas, check_every=50),
    "ormas-monitor, each step": partial(ormas, check_every=1),
    "trainscope": trainscope,
}

if __name__ == "__main__":
    asked = arguments()
    table(TOOLS, asked.models, asked.seconds)
