"""What a watch takes up: memory of the process and bytes on disk, over 10,000 steps of a small training.

Each way runs in a process of its own, on a directory that is removed again. Shown are the highest resident set, its slope over the last
5,000 steps (what would become of it in a long training: until then the buffers of the writer have found their size), the time of the
processor of all threads, the writer's too, and the bytes of the run, a row and a step; a row is the eight numbers of one site and call at
one step. Reads /proc, so Linux alone.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss

import hookscope as hs

STEPS, SAMPLE, MIB = 10_000, 10, 1 << 20
WAYS: dict[str, dict[str, Any] | None] = {"bare": None, "default": {}, "every=1": {"every": 1}}


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def train(way: str, place: str) -> dict[str, float]:
    """Facts of one training, in this process."""
    torch.manual_seed(0)
    model = nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(64, 64), nn.Tanh())), nn.Linear(64, 1))
    optimizer, x = torch.optim.AdamW(model.parameters(), lr=1e-3), torch.randn(64, 64)
    y, sizes, how = x.sum(1, keepdim=True).sin(), [], WAYS[way]
    used = time.process_time()
    with nullcontext() if how is None else hs.watch(model, optimizer, to=place, on_finding="ignore", **how):
        for step in range(STEPS):
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
            if step % SAMPLE == 0:
                sizes.append(resident())
    facts = {"ms": (time.process_time() - used) / STEPS * 1e3, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    half = len(sizes) // 2
    return {**facts, "begin": sizes[0], "slope": float(np.polyfit(np.arange(half) * SAMPLE, sizes[-half:], 1)[0])}


def on_disk(place: Path) -> str:
    """Steps recorded, and what they take up."""
    run = hs.Run(place)
    rows, total = run.arrow().num_rows, sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    recorded = len(run.steps)
    return f"{len(run.sites):6} {recorded:6} {total / MIB:8.2f} {total / rows:7.1f} {total / recorded:9.0f}"


def table() -> None:
    """One line a way."""
    print(f"torch {torch.__version__}, one thread, {STEPS} steps")
    print(
        f"{'':8} {'ms a step':>9} {'peak MiB':>9} {'grown MiB':>9} {'B a step':>9}   on disk: sites, steps, MiB, B a row, B a recorded step"
    )
    for way in WAYS:
        with tempfile.TemporaryDirectory() as parent:
            place = Path(parent, "run")
            told = subprocess.run([sys.executable, __file__, way, place], check=True, capture_output=True, text=True).stdout
            facts = json.loads(told)
            memory = f"{facts['peak'] / MIB:9.1f} {(facts['peak'] - facts['begin']) / MIB:9.1f} {facts['slope']:9.1f}"
            print(f"{way:8} {facts['ms']:9.3f} {memory}   {on_disk(place) if place.exists() else ''}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(train(*sys.argv[1:])))
    else:
        table()
