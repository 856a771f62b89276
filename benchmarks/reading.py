"""What opening a run costs: 2,000 steps of 200 sites, read in fresh processes that never import torch; and what `import hookscope` adds.

Each time is that of a whole `python -c`, start of the interpreter included, with that of an empty one beside it: medians of repetitions
taken in turn, and the best of them; the time of the processor stands beside that of the clock, since a busy machine stretches the clock.
The file cache is warm.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from hookscope._core._frame import Frame
from hookscope._core._site import Site
from hookscope._record import Meta, RunWriter

STEPS, SITES, REPETITIONS = 2_000, 200, 15
NO_TORCH = "import sys; assert 'torch' not in sys.modules"
OPEN = "import hookscope as hs; run = hs.Run({path!r})"
PROGRAMS = {
    "nothing": "pass",
    "import hookscope": "import hookscope",
    "import numpy, pyarrow": "import numpy, pyarrow",
    "open the run": OPEN,
    "open, one series": OPEN + "; assert len(run['layers.3:output', 'rms'].values) == {steps}",
    "open, all series of a kind": OPEN
    + "; assert run.matrix([s for s in run.sites if s.kind == 'output'], 'rms').values.shape[0] == {steps}",
    "open, diagnose": OPEN + "; hs.diagnose(run)",
}


def write(to: Path) -> None:
    """A run as a training of 100 layers would leave it."""
    writer = RunWriter(to, Meta())
    kinds = ("output", "output_grad")
    writer.sites([Site(i, f"layers.{i % 100}", kinds[i // 100], module=f"layers.{i % 100}") for i in range(SITES)])
    zero, sites, rng = np.zeros(SITES, np.int32), np.arange(SITES, dtype=np.int32), np.random.default_rng(0)
    stats = np.zeros((SITES, 8))
    stats[:, 0] = 4096
    for step in range(STEPS):
        values = rng.normal(size=(SITES, 3))
        stats[:, 4] = values[:, 0] * 64
        stats[:, 5] = 4096 + values[:, 1] * 90
        stats[:, 6], stats[:, 7] = -3.5 - abs(values[:, 2]), 3.5 + abs(values[:, 2])
        writer.frame(Frame(step, zero, sites, zero, sites, stats))
    writer.close("finished")


def milliseconds(code: str) -> tuple[float, float]:
    """Of one process: by the clock, and of the processor."""
    began = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-c", code])
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, code
    return (time.perf_counter() - began) * 1e3, (used.ru_utime + used.ru_stime) * 1e3


def main() -> None:
    """One line a program."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        write(path)
        size = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
        print(f"{STEPS:,} steps of {SITES} sites: {size / 2**20:.1f} MiB on disk")
        codes = {name: f"{code.format(path=str(path), steps=STEPS)}; {NO_TORCH}" for name, code in PROGRAMS.items()}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in codes}
        for _ in range(REPETITIONS):
            for name, code in codes.items():
                times[name].append(milliseconds(code))
    print(f"{'ms of a fresh process that does':32} {'clock':>7} {'best':>7} {'processor':>10} {'best':>7} {'beyond the interpreter':>24}")
    empty = statistics.median(used for _, used in times["nothing"])
    for name, measured in times.items():
        clock, used = zip(*measured, strict=True)
        beyond = statistics.median(used) - empty
        print(
            f"{name:32} {statistics.median(clock):7.0f} {min(clock):7.0f} {statistics.median(used):10.0f} {min(used):7.0f} {beyond:24.0f}"
        )


if __name__ == "__main__":
    main()
