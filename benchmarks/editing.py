"""What an edit costs: a forward and backward with an edit of one layer, against a plain hook that does the same arithmetic.

    python benchmarks/editing.py

Alternates the three, and prints the median time of the thread in microseconds for each forward and backward.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

import hookscope as hs

ROUNDS, STEPS = 60, 20


@contextmanager
def hooked(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]):  # noqa: ANN201
    handle = module.register_forward_hook(lambda m, args, output: fn(output))
    try:
        yield
    finally:
        handle.remove()


def measure(model: nn.Module, x: torch.Tensor) -> float:
    began = time.thread_time()
    for _ in range(STEPS):
        model(x).sum().backward()
    return (time.thread_time() - began) / STEPS * 1e6


def main() -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU())))
    x, vector, basis = torch.randn(32, 64), torch.randn(64), torch.nn.functional.normalize(torch.randn(1, 64))
    cases: dict[str, tuple[hs.Op, Callable[[torch.Tensor], torch.Tensor]]] = {
        "scale": (hs.scale(0.5), lambda h: h * 0.5),
        "add": (hs.add(vector), lambda h: h + vector),
        "project": (hs.project(basis), lambda h: h - (h @ basis.T) @ basis),
    }
    print(f"{'':10}{'no hook':>10}{'own hook':>10}{'edit':>10}")
    for name, (op, fn) in cases.items():
        times: dict[str, list[float]] = {"no hook": [], "own hook": [], "edit": []}
        for _ in range(ROUNDS):
            for way, seen in times.items():
                with ExitStack() as stack:
                    if way != "no hook":
                        stack.enter_context(hooked(model[6], fn) if way == "own hook" else hs.edit(model, {"6": op}))
                    seen.append(measure(model, x))
        print(f"{name:10}" + "".join(f"{statistics.median(seen):>10.0f}" for seen in times.values()))


if __name__ == "__main__":
    main()
