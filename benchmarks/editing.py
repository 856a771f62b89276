"""What an edit costs: a call of one module with an edit, against a plain hook that does the same arithmetic, and making an edit.

The three ways alternate; shown is the median time of this thread's processor, in microseconds.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

import hookscope as hs

ROUNDS, CALLS = 40, 200


@contextmanager
def hooked(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """A plain hook with that function."""
    handle = module.register_forward_hook(lambda _module, _args, output: fn(output))
    try:
        yield
    finally:
        handle.remove()


def call_us(model: nn.Module, x: torch.Tensor) -> float:
    """One call of the model; what is done for the first time is not counted."""
    model(x)
    began = time.thread_time()
    for _ in range(CALLS):
        model(x)
    return (time.thread_time() - began) / CALLS * 1e6


def making_us(model: nn.Module, op: hs.Op) -> float:
    """Making and discarding an edit of one site."""
    began = time.thread_time()
    hs.edit(model, {"0": op}).discard()
    return (time.thread_time() - began) * 1e6


def main() -> None:
    torch.set_num_threads(1)
    model, x = nn.Sequential(nn.Identity()), torch.randn(32, 64, requires_grad=True)
    deep = nn.Sequential(*(layer for _ in range(50) for layer in (nn.Linear(8, 8), nn.ReLU())))
    vector, basis, unit = torch.randn(64), nn.functional.normalize(torch.randn(1, 64)), torch.zeros(64, dtype=torch.bool)
    unit[3] = True
    cases: dict[str, tuple[hs.Op, Callable[[torch.Tensor], torch.Tensor]]] = {
        "scale": (hs.scale(0.5), lambda h: h * 0.5),
        "add": (hs.add(vector), lambda h: h + vector),
        "project": (hs.project(basis), lambda h: h - (h @ basis.T) @ basis),
        "zero a unit": (hs.zero().at(units=3), lambda h: torch.where(unit, torch.zeros_like(h), h)),
    }
    print(f"{'':12}{'no hook':>12}{'plain hook':>12}{'edit':>12}")
    for name, (op, fn) in cases.items():
        times: dict[str, list[float]] = {"no hook": [], "plain hook": [], "edit": []}
        for _ in range(ROUNDS):
            for way, seen in times.items():
                with nullcontext() if way == "no hook" else hooked(model[0], fn) if way == "plain hook" else hs.edit(model, {"0": op}):
                    seen.append(call_us(model, x))
        print(f"{name:12}" + "".join(f"{statistics.median(seen):>12.1f}" for seen in times.values()))
    print(f"making one in a model of 101 modules: {statistics.median(making_us(deep, hs.zero()) for _ in range(ROUNDS)):.0f}")


if __name__ == "__main__":
    main()
