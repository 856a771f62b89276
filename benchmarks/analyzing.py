"""What analyzing costs: a forward under `hs.analyze`, over the bare forward of the same batch.

Both alternate in one process, so that a machine that slows down slows both; shown are medians of the ratios of neighbours, in time of the
processor used by this thread. One thread, evaluation mode, no gradients. A pass is over `BATCHES` batches; what it costs once, to place and
remove hooks and to make layers of sums, is in that and is shown by itself.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from watching import CASES

import hookscope as hs

BATCHES, PAIRS, PAIRS_ALL = 32, 7, 3
VARIANTS: dict[str, dict[str, Any]] = {
    "units": {"spectrum": False, "attention": False},
    "units and attention": {"spectrum": False},
    "all": {},
}


def timed(run: Callable[[], object]) -> float:
    """Seconds of the processor for one call."""
    start = time.thread_time()
    run()
    return time.thread_time() - start


def measure(name: str, options: dict[str, Any], pairs: int) -> tuple[float, float, float, float]:
    """Milliseconds of a bare forward, median and 95th percentile of the ratio, and milliseconds of a pass besides its forwards."""
    torch.manual_seed(0)
    model = CASES[name].make().eval()
    data = [CASES[name].batch()[0] for _ in range(BATCHES)]

    def bare() -> None:
        with torch.no_grad():
            for batch in data:
                model(batch)

    bare()
    hs.analyze(model, data[:1], **options)
    gc.freeze()  # a collection of all that torch has loaded falls on some passes and not on others
    times = np.array([(timed(bare), timed(lambda: hs.analyze(model, data, **options))) for _ in range(pairs)])
    ratios = times[:, 1] / times[:, 0]
    bare_ms, each = np.median(times, 0) / BATCHES * 1e3
    one = np.median([timed(lambda: hs.analyze(model, data[:1], **options)) for _ in range(pairs)]) * 1e3
    once = max(0.0, (one - each) / (1 - 1 / BATCHES))
    return float(bare_ms), float(np.median(ratios)), float(np.percentile(ratios, 95)), float(once)


def main() -> None:
    """Every case and variant, or the cases that are named."""
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread")
    for name in sys.argv[1:] or CASES:
        for variant, options in VARIANTS.items():
            bare, median, high, once = measure(name, options, PAIRS if variant != "all" else PAIRS_ALL)
            print(f"{name:8} {variant:20} bare forward {bare:7.2f} ms   ratio {median:5.2f} (p95 {high:5.2f})   once a pass {once:6.1f} ms")


if __name__ == "__main__":
    main()
