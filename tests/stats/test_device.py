"""When the kernels for GPUs are used: where they agree with torch operations, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from torch.torch_version import TorchVersion

from hookscope._core._errors import HookscopeWarning
from hookscope._stats import Cells, Listed, _device, _launch, _reduce, reduce_into
from hookscope._stats import _list as lists
from hookscope._stats._plain import FLOATS

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
INTERPRETS = _device.has_triton() and TorchVersion(version("triton")) >= "3.9"  # an older one cannot with the NumPy of today
interpreted = pytest.mark.skipif(not INTERPRETS or torch.cuda.is_available(), reason="stands in for a GPU, with Triton's interpreter")


@pytest.fixture
def _as_on_a_gpu(monkeypatch):
    """The kernels are asked, though on a CPU; with rows without an address, which the native kernel needs."""
    monkeypatch.setattr(_device, "reducible", lambda values: values.dtype in _launch.ELEMENTS)
    monkeypatch.setattr(_reduce, "reducible", _device.reducible)


@interpreted
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_sample_that_is_tried_first_agrees(dtype):
    assert _device.difference(CPU, dtype) == ""


@interpreted
def test_a_kernel_that_gives_another_number_is_told_with_both(monkeypatch):
    right = _launch.reduce_one

    def wrong(row, flat):
        right(row, flat)
        row[1] += 1

    monkeypatch.setattr(_launch, "reduce_one", wrong)
    assert _device.difference(CPU, torch.float32).startswith("one gave [40001.0, ")


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        ("one gave 1 where 2 is right", "one gave 1 where"),
        (RuntimeError("no C compiler\nlong story"), "failed with RuntimeError: no C compiler$"),
    ],
)
def test_kernels_that_are_wrong_or_fail_are_not_used_and_said_so_once(monkeypatch, outcome, text):
    def difference(device, dtype):
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(_device, "difference", difference)
    _device._agrees.cache_clear()
    try:
        with pytest.warns(HookscopeWarning, match=f"torch.float32 on cpu are made with torch operations.*{text}"):
            assert not _device._agrees(CPU, torch.float32)
        assert not _device._agrees(CPU, torch.float32)
    finally:
        _device._agrees.cache_clear()


def test_no_kernel_for_gpus_is_asked_on_a_cpu():
    assert not _device.reducible(torch.ones(3))


@interpreted
@pytest.mark.usefixtures("_as_on_a_gpu")
def test_tensors_of_every_layout_come_out_as_they_do_on_a_cpu(monkeypatch):
    x = torch.randn(60, 50, generator=torch.Generator().manual_seed(1))
    x[3, 4] = torch.nan
    tensors = [
        x,
        x.T,
        x[:, ::2],
        x[:1].expand(7, 50),
        x.half(),
        x.bfloat16().T,
        x.double(),
        (x * 9).nan_to_num().int(),
        x.relu().to_sparse(),
    ]
    tensors += [torch.ones(()), torch.empty(0), x[2:3, 5:6], torch.ones(2, device="meta")]
    cells = Cells("cpu")
    native = [cells.row() for _ in tensors]
    single, listed = ([replace(cells.row(), pointer=0) for _ in tensors] for _ in range(2))
    launches = []
    monkeypatch.setattr(lists, "reduce_list", lambda rows, flats: (launches.append(len(flats)), _launch.reduce_list(rows, flats)))
    there = [reduce_into(row, tensor) for row, tensor in zip(single, tensors, strict=True)]
    together = Listed()
    assert [together.add(row, tensor) for row, tensor in zip(listed, tensors, strict=True)] == there == [True] * 12 + [False]
    together.write()
    assert launches == [9]  # not those that repeat an element, have zeros that are not stored, or are whole numbers
    monkeypatch.undo()
    for row, tensor in zip(native, tensors, strict=True):
        reduce_into(row, tensor)
    want = torch.from_numpy(cells.read(native))
    for rows in (single, listed):
        torch.testing.assert_close(torch.from_numpy(cells.read(rows)), want, rtol=1e-12, atol=1e-9)


COMPILED = """
import re
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from hookscope._stats import _launch, _triton

def compiled(kernel, types, on_16, **constants):
    signature = {**types, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs={(i,): [["tt.divisibility", 16]] for i in on_16})
    return triton.compile(source, target=GPUTarget("cuda", 80, 32), options=_launch.FUSED).asm["ptx"]

tables = dict.fromkeys(["addresses", "sizes", "owners", "starts"], "*i64")
for dtype in (torch.float32, torch.bfloat16):
    e = _launch.ELEMENTS[dtype]
    constants = {"block": _triton.BLOCK, "span": _triton.SPAN, **_launch._constants(dtype)}
    del constants["enable_fp_fusion"]
    types, here = {**tables, "out": "*fp64", "step": "i32"}, {"element": getattr(tl, e.name), "aligned": True}
    texts = [compiled(_triton.read_list, types, range(5), **constants, **here)]
    if e.name == "float32":
        texts.append(compiled(_triton.read_one, {"x": "*fp32", "n": "i32", "out": "*fp64", "step": "i32"}, (0, 2), **constants))
    for ptx in texts:
        assert re.search(r"ld\\.global[.\\w:]*\\.v(4\\.b32|2\\.b64)", ptx), f"{dtype}: no load of 16 bytes"
        assert ".ftz" not in ptx, f"{dtype}: subnormals are flushed"
        assert "atom." not in ptx
compiled(_triton.merge_one, {"parts": "*fp64", "step": "i32", "columns": "i32", "size": "i32", "row": "*fp64"}, (), block=_triton.PARTS)
compiled(_triton.merge_list, {"parts": "*fp64", "step": "i32", "firsts": "*i64", "sizes": "*i64", "rows": "*i64"}, (), block=_triton.PARTS)
"""


@pytest.mark.slow
@pytest.mark.skipif(not _device.has_triton(), reason="Triton is not installed")
def test_every_kernel_compiles_for_a_gpu_that_is_not_there_and_reads_sixteen_bytes_at_a_time(tmp_path):
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILED], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
