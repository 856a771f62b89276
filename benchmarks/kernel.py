"""What the eight stats of one CPU tensor cost: the native kernel, torch operations, and `torch.sum` alone for scale; then its exponents.

One thread; the best of a few repetitions. A call includes everything that `reduce_into` does in Python.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Callable

import torch

from hookscope._stats import Cells, backend, count_into, reduce_into
from hookscope._stats._exponents import SLOTS, exponents_of
from hookscope._stats._fallback import stats_in_chunks

SIZES = (64, 1_000, 100_000, 10_000_000)
ENOUGH_S = 0.005  # of work in a repetition: shorter than a slice of a busy machine, so that some repetition has a core to itself


def seconds(call: Callable[[], object], repetitions: int = 40) -> float:
    """The time of one call: the best of a few means."""
    call()
    start = time.perf_counter()
    call()
    calls = max(1, int(ENOUGH_S / (time.perf_counter() - start)))
    best = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def main() -> None:
    """One line a case."""
    torch.set_num_threads(1)
    row = Cells("cpu").row()
    print(f"backend {backend()}, torch {torch.__version__}; us a call (ns an element)")
    print(f"{'dtype':9} {'layout':12} {'elements':>10} {'reduce_into':>20} {'torch operations':>20} {'torch.sum':>20}")
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for n in SIZES:
            report(row, "contiguous", torch.randn(n).to(dtype))
    masked = torch.randn(100_000)
    masked[::500] = -torch.inf
    report(row, "with -inf", masked)
    report(row, "transposed", torch.randn(250, 400).T)
    report(row, "expanded", torch.ones(()).expand(250, 400))
    report(row, "strided", torch.randn(250, 800)[:, ::2])
    report(row, "integer", torch.arange(100_000))
    print(f"\n{'dtype':9} {'values':12} {'elements':>10} {'count_into':>20} {'torch operations':>20}")
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for values, x in (
            ("normal", torch.randn(100_000)),
            ("half zeros", torch.randn(100_000).relu()),
            ("all alike", torch.ones(100_000)),
        ):
            report_exponents(values, x.to(dtype))


def report(row, layout: str, x: torch.Tensor) -> None:
    """Time the three ways on one tensor."""
    calls = (lambda: reduce_into(row, x), lambda: stats_in_chunks(x.reshape(-1)), x.sum)
    times = [seconds(call) for call in calls]
    cells = " ".join(f"{t * 1e6:11.2f} ({t * 1e9 / x.numel():6.2f})" for t in times)
    print(f"{str(x.dtype).removeprefix('torch.'):9} {layout:12} {x.numel():>10} {cells}")


def report_exponents(values: str, x: torch.Tensor) -> None:
    """Time both ways of counting by exponent on one tensor."""
    counts = torch.zeros(SLOTS, dtype=torch.int64)
    times = [seconds(call) for call in (lambda: count_into(counts, x), lambda: exponents_of(x))]
    cells = " ".join(f"{t * 1e6:11.2f} ({t * 1e9 / x.numel():6.2f})" for t in times)
    print(f"{str(x.dtype).removeprefix('torch.'):9} {values:12} {x.numel():>10} {cells}")


if __name__ == "__main__":
    main()
