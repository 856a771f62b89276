"""The choice of backend: by environment, by what was built, and with the same numbers whatever is chosen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from hookscope._stats import Cells, backend, reduce_into
from hookscope._stats._backend import KERNEL

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys, torch
{before}
from hookscope._stats import Cells, backend, reduce_into
cells, rows = Cells("cpu"), []
torch.manual_seed(3)
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
    for n in (1, 100, 50_001):
        x = torch.randn(n, 2).to(dtype)
        x[0, 0] = float("-inf")
        for tensor in (x, x.T, x[:, :1], x[:, :1].expand(-1, 3), x[1:]):
            rows.append(cells.row())
            assert reduce_into(rows[-1], tensor)
"""


def _in_a_fresh_python(before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(before=before) + "print(json.dumps([backend(), cells.read(rows).tolist()]))"
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("before", "environment"),
    [("", {"HOOKSCOPE_NATIVE": "0"}), ("sys.modules['hookscope._stats._native'] = None", {})],
    ids=["asked_for", "nothing_built"],
)
def test_without_the_kernel_every_number_is_the_same(before, environment):
    name, rows = json.loads(_in_a_fresh_python(before, **environment).stdout)
    assert name == "torch"
    here: dict[str, object] = {}
    exec(PROGRAM.format(before=""), here)
    np.testing.assert_allclose(rows, here["cells"].read(here["rows"]), rtol=1e-12, atol=1e-9)


def test_a_value_that_means_nothing_is_refused_with_the_valid_ones():
    failed = _in_a_fresh_python(HOOKSCOPE_NATIVE="yes")
    assert failed.returncode != 0
    assert "UsageError: HOOKSCOPE_NATIVE='yes': choose 1 (the native kernel" in failed.stderr


@pytest.mark.skipif(KERNEL is None, reason="no kernel was built, or it was switched off")
def test_the_backend_names_the_instruction_set_in_use():
    assert backend() == f"native {KERNEL.levels()[0]}"
    assert KERNEL.levels()[-1] == "generic"


@pytest.mark.skipif(KERNEL is None, reason="no kernel was built, or it was switched off")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 3, 0, 8, 1), "null address"),
        ((8, 3, 0, 0, 1), "null address"),
        ((8, -1, 0, 8, 1), "n = -1"),
        ((8, 1, 4, 8, 1), "dtype 4: choose 0 to 3"),
    ],
)
def test_the_kernel_refuses_what_it_can_recognise_as_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        KERNEL.reduce(*arguments)


@pytest.mark.skipif(KERNEL is None, reason="no kernel was built, or it was switched off")
def test_an_unknown_instruction_set_is_refused():
    with pytest.raises(ValueError, match="'sse': choose one of levels"):
        KERNEL.use("sse")


@pytest.mark.skipif(KERNEL is None, reason="no kernel was built, or it was switched off")
def test_flushing_subnormals_does_not_turn_them_into_zeros_in_the_count():
    cells = Cells("cpu")
    row = cells.row()
    tensor = torch.full((100,), 1e-40)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        reduce_into(row, tensor)
    finally:
        torch.set_flush_denormal(False)
    assert cells.read([row])[0, 3] == 0


@pytest.mark.skipif(KERNEL is None, reason="no kernel was built, or it was switched off")
def test_other_threads_run_while_a_large_tensor_is_read():
    row, tensor, ticks, done = Cells("cpu").row(), torch.ones(1 << 23), [], threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # the interpreter changes threads only where one lets go
    ticking = threading.Thread(target=tick)
    try:
        ticking.start()
        for _ in range(200):
            start = time.perf_counter()
            reduce_into(row, tensor)
            end = time.perf_counter()
            if any(start < t < end for t in ticks):
                break
            ticks.clear()
            time.sleep(0.001)
        else:
            pytest.fail("no other thread ever ran")
    finally:
        done.set()
        sys.setswitchinterval(interval)
        ticking.join()


@pytest.mark.slow
def test_the_package_builds_where_there_is_no_compiler(tmp_path):
    command = [
        sys.executable,
        "setup.py",
        "-q",
        "build_ext",
        "--force",
        "--build-lib",
        str(tmp_path),
        "--build-temp",
        str(tmp_path / "temp"),
    ]
    env = {**os.environ, "CC": "no-such-compiler"}
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "no-such-compiler" in built.stderr
    assert not list(tmp_path.rglob("_native*"))
