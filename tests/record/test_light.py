"""Reading and writing a run stay light: no torch, none of the slow parts of pyarrow, many rows at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hookscope._core._frame import Frame
from hookscope._core._site import Site
from hookscope._record import Meta, RunWriter

READ = """
import sys
from hookscope._record import Meta, Run, RunWriter
run = Run(sys.argv[1])
series = run["layers.3:output", "rms"]
assert len(series.steps) == 2000, len(series.steps)
matrix, rows, summary, table = run.matrix(run.sites, "mean"), run.rows(), str(run.summary()), run.arrow()
RunWriter(sys.argv[1], Meta(), resume=True).close("finished")
{planted}
print(*sorted({{"torch", "pandas", "polars", "pyarrow.compute", "pyarrow.parquet", "pyarrow.dataset"}} & sys.modules.keys()))
"""


@pytest.fixture(scope="module")
def large_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,000 steps of 200 sites."""
    writer = RunWriter(tmp_path_factory.mktemp("large"), Meta())
    writer.sites([Site(i, f"layers.{i}", "output", module=f"layers.{i}") for i in range(200)])
    zero, sites, rng = np.zeros(200, np.int32), np.arange(200, dtype=np.int32), np.random.default_rng(0)
    stats = np.zeros((200, 8))
    stats[:, 0] = 4096
    for step in range(2000):
        stats[:, 4:] = np.sort(rng.normal(size=(200, 4)) ** 2, axis=1)
        writer.frame(Frame(step, zero, sites, zero, sites, stats))
    writer.close("finished")
    return writer.path


@pytest.mark.parametrize(("planted", "loaded"), [("", ""), ("import pyarrow.compute", "pyarrow.compute")])
def test_reading_imports_nothing_heavy(large_run: Path, planted: str, loaded: str) -> None:
    """The second case shows that the check can fail."""
    command = [sys.executable, "-W", "error", "-c", READ.format(planted=planted), str(large_run)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == loaded


def test_a_compressed_run_takes_less_than_half_of_what_its_rows_do(large_run: Path) -> None:
    size = sum(p.stat().st_size for p in large_run.rglob("*") if p.is_file())
    assert size < 2000 * 200 * 84 / 2
