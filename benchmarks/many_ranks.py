"""What reading a run of many ranks costs: its frames written as a training would leave them, one merged series and a diagnosis read back.

By default 1,024 ranks, 1,000 steps, 500 sites of a data-parallel model of 62 layers: outputs and their gradients, weights and biases with
gradients before and after averaging and updates, the loss, the batch, the learning rate, the time of a step. All eight stats of every row
are there: 512 million rows, 15 GB on disk. Every rank has numbers of its own where ranks of a training would have them; parameters are the
same on all.
Three things are wrong with it, and the diagnosis has to name them: from step 600 on rank 700 holds other weights, the loss of rank 513 is
20 times that of the others, and at the last step a layer of rank 300 puts out NaN.

Each reading is a process of its own; its time is by the clock, its memory the largest resident set. `--write DIR` and `--read DIR` do one
of the two and keep the directory.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hookscope._core._frame import STEP_LEVEL
from hookscope._core._site import Kind, Site
from hookscope._record import Meta
from hookscope._record._atomic import replace_file
from hookscope._record._columns import Rows, batch_of_rows
from hookscope._record._journal import Journal
from hookscope._record._layout import Layout
from hookscope._record._segment import END_OF_STREAM, STREAM_OPTIONS
from hookscope._record._sitetable import encode_sites

BATCH_STEPS = 100  # 50,000 rows, as a finished segment has them
WIDTH = 1024 * 1024
LAYER: tuple[tuple[str, Kind, str], ...] = (
    ("", "output", ""),
    ("", "output_grad", ""),
    (".weight", "param", ""),
    (".weight", "param_grad", ""),
    (".weight", "param_grad", "local"),
    (".weight", "update", ""),
    (".bias", "param", ""),
    (".bias", "param_grad", ""),
)
PROGRAMS = {
    "one merged series": "s = run['layers.7:output', 'rms']; print(len(s.steps), 'steps')",
    "one series a rank": "print(run.per_rank('layers.7:output', 'rms').values.shape)",
    "diagnose": "print(hs.diagnose(run))",
}
MEASURED = """
import resource, sys, time
began = time.perf_counter()
import hookscope as hs
run = hs.Run({path!r})
opened = time.perf_counter() - began
{code}
print(f"    {{time.perf_counter() - began:.1f}} s, of which {{opened:.1f}} s to open;",
      f"{{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f}} GiB;",
      "torch" in sys.modules and "torch was imported" or "without torch")
"""


@dataclass(frozen=True)
class Shape:
    """How large the run is."""

    ranks: int = 1024
    sites: int = 500
    steps: int = 1000


def table(sites: int) -> list[Site]:
    """The loss, the batch, two scalars, and as many layers as there is room for."""
    found = [Site(0, "loss", "loss"), Site(1, "", "input"), Site(2, "lr", "scalar"), Site(3, "seconds", "scalar")]
    for layer in range((sites - len(found)) // len(LAYER)):
        module = f"layers.{layer}"
        for suffix, kind, label in LAYER:
            shape = (1024, 1024) if suffix == ".weight" else (1024,)
            facts = {"shape": shape, "numel": int(np.prod(shape))} if suffix else {}
            found.append(Site(len(found), module + suffix, kind, label=label, module=module, **facts))
    return found


class Numbers:
    """The rows of `steps` steps of any rank."""

    def __init__(self, sites: list[Site], steps: int) -> None:
        self.sites, self.steps = sites, steps
        rng = np.random.default_rng(0)
        self.own = np.array([s.label == "local" or s.kind not in ("param", "param_grad", "update") for s in sites])
        self.inside = np.array([s.kind in ("output", "output_grad", "input") for s in sites])
        self.pool = rng.normal(size=(steps * len(sites) + 7919 * 64, 2)).astype(np.float32)
        count = np.array([float(s.numel or (1 if s.kind in ("loss", "scalar") else 4096)) for s in sites])
        self.stats = np.zeros((steps, len(sites), 8))
        self.stats[:, :, 0] = count
        self._fill(self.stats, self.pool[: steps * len(sites)], np.ones(len(sites), bool))
        place = np.where(self.inside, 0, STEP_LEVEL).astype(np.int32)
        order = np.where(self.inside, np.arange(len(sites)), STEP_LEVEL).astype(np.int32)
        tile = lambda column: np.tile(np.asarray(column, np.int32), steps)  # noqa: E731  # of every step alike
        self.places = tile(place), tile(np.arange(len(sites))), tile(np.zeros(len(sites))), tile(order)

    def _fill(self, stats: NDArray[np.float64], noise: NDArray[np.float32], which: NDArray[np.bool_]) -> None:
        noise = noise.reshape(*stats.shape[:2], 2)[:, which]
        count = stats[:, which, 0]
        single = count == 1
        small = np.array([0.001 if s.kind == "update" else 1.0 for s in self.sites])[which]
        value = 1 + 0.1 * noise[..., 0].astype(np.float64)
        stats[:, which, 4] = np.where(single, value, noise[..., 0] * np.sqrt(count))
        stats[:, which, 5] = np.where(single, value * value, (count + noise[..., 1] * np.sqrt(2 * count)) * small**2)
        stats[:, which, 6] = np.where(single, value, (-3.5 - np.abs(noise[..., 0])).astype(np.float32))
        stats[:, which, 7] = np.where(single, value, (3.5 + np.abs(noise[..., 1])).astype(np.float32))

    def of(self, rank: int) -> Rows:
        """All rows of one rank, with what is wrong there."""
        stats, size = self.stats.copy(), self.steps * len(self.sites)
        start = (rank * 7919) % (7919 * 64)
        self._fill(stats, np.roll(self.pool[start : start + size], rank // 64, axis=0), self.own)
        if rank == 513:
            stats[:, 0, 4:] *= 20.0
            stats[:, 0, 5] *= 20.0
        if rank == 700:
            held = [i for i, s in enumerate(self.sites) if s.kind == "param"]
            stats[600 * self.steps // 1000 :, held, 5] *= 1.01
        bad = [i for i, s in enumerate(self.sites) if s.kind == "param_grad" and not s.label]
        if rank == 300:
            bad += [i for i, s in enumerate(self.sites) if s.name in ("layers.30:output", "loss") or s.label or s.kind == "output_grad"]
        stats[-1, bad, 1], stats[-1, bad, 4:6] = stats[-1, bad, 0], 0.0
        stats[-1, bad, 6], stats[-1, bad, 7] = np.inf, -np.inf
        steps = np.repeat(np.arange(self.steps, dtype=np.int64), len(self.sites))
        return Rows(steps, np.full(size, rank, np.int32), *self.places, stats.reshape(size, 8))


def write(to: Path, shape: Shape) -> None:
    """The whole run."""
    layout, sites = Layout(to), table(shape.sites)
    numbers, encoded = Numbers(sites, shape.steps), encode_sites(sites)
    to.mkdir(parents=True, exist_ok=True)
    meta = Meta(rank=0, world_size=shape.ranks, status="finished", closed=Meta().created)
    replace_file(layout.meta, meta.to_json().encode())
    for rank in range(shape.ranks):
        layout.frames(rank).mkdir(parents=True)
        layout.sites_of(rank).write_bytes(encoded)
        journal = Journal(layout.journal(rank))
        journal.append({"event": "averaged", "step": 0})
        journal.append({"event": "closed", "step": shape.steps, "steps": shape.steps})
        journal.close()
        write_segment(layout.frames(rank) / "000001.arrows", numbers.of(rank), BATCH_STEPS * len(sites))


def write_segment(path: Path, rows: Rows, batch_rows: int) -> None:
    """A finished stream of large batches."""
    batch = batch_of_rows(rows)
    with path.open("wb") as file, pa.ipc.new_stream(file, batch.schema, options=STREAM_OPTIONS) as stream:
        for start in range(0, len(rows), batch_rows):
            stream.write_batch(batch.slice(start, batch_rows))
    assert path.read_bytes().endswith(END_OF_STREAM)


def read(path: Path) -> None:
    """One process a program."""
    for name, code in PROGRAMS.items():
        print(f"{name}:", flush=True)
        subprocess.run([sys.executable, "-c", MEASURED.format(path=str(path), code=code)], check=True)


def main() -> None:
    """Write, read, or both in a directory that is gone afterwards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="only write the run, into this directory")
    parser.add_argument("--read", type=Path, help="only read the run in this directory")
    for name, value in vars(Shape()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    shape = Shape(asked.ranks, asked.sites, asked.steps)
    if asked.read:
        read(asked.read)
        return
    with tempfile.TemporaryDirectory() as folder:
        to = asked.write or Path(folder) / "run"
        began = time.perf_counter()
        write(to, shape)
        size = sum(p.stat().st_size for p in to.rglob("*") if p.is_file())
        rows = shape.ranks * shape.steps * len(table(shape.sites))
        print(f"{rows:,} rows, {size / 1e9:.1f} GB on disk, written in {time.perf_counter() - began:.0f} s {json.dumps(vars(shape))}")
        if not asked.write:
            read(to)


if __name__ == "__main__":
    main()
