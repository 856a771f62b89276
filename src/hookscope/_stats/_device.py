"""Whether the kernels for GPUs are used on a device: if Triton is there, and once they have given the numbers of torch operations."""

from __future__ import annotations

import importlib.util
import warnings
from functools import lru_cache

import torch

from hookscope._core._errors import HookscopeWarning

from . import _launch
from ._backend import WANTED
from ._fallback import stats_in_chunks


def reducible(values: torch.Tensor) -> bool:
    """Whether the kernels for GPUs can read these values now.

    The first time a dtype is seen on a device this compiles, and waits for, one small comparison with torch operations: a compiler and
    a GPU that nobody has tried together may be wrong. While a CUDA graph is captured nothing may wait or be loaded, so the answer is no.
    """
    device = values.device
    if device.type != "cuda" or values.dtype not in _launch.ELEMENTS or not has_triton() or torch.cuda.is_current_stream_capturing():
        return False
    return _agrees(device, values.dtype)


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Whether Triton is installed, and wanted."""
    return WANTED and importlib.util.find_spec("triton") is not None


@lru_cache
def _agrees(device: torch.device, dtype: torch.dtype) -> bool:
    try:
        found = difference(device, dtype)
    except Exception as failed:  # noqa: BLE001  # no compiler, an unknown GPU, a Triton of another age: whatever it is, there is another way
        found = f"they failed with {type(failed).__name__}: {str(failed).splitlines()[0] if str(failed) else ''}"
    if found:
        warnings.warn(
            f"the statistics of {dtype} on {device} are made with torch operations, which is slower: of the Triton kernels, {found}",
            HookscopeWarning,
            stacklevel=2,
        )
    return not found


def difference(device: torch.device, dtype: torch.dtype) -> str:
    """How the kernels differ from torch operations on a sample of three spans with everything odd in it; empty if they do not."""
    x = torch.linspace(-3, 5, 40_001, dtype=torch.float64, device="cpu")
    odd = (0.0, -0.0, float("nan"), float("inf"), float("-inf"), torch.finfo(dtype).smallest_normal / 2)
    for i, value in enumerate(odd):
        x[1000 * i + i :: 10_007] = value
    x = x.to(dtype)
    want = stats_in_chunks(x)
    cells = torch.full((3, 8), -1.0, dtype=torch.float64, device=device)
    there = x.to(device)
    _launch.reduce_one(cells[0], there)
    _launch.reduce_list([cells[1], cells[2]], [there[:100], there])
    for row, right in zip(cells.cpu(), (want, stats_in_chunks(x[:100]), want), strict=True):
        exact = [0, 1, 2, 3, 6, 7]
        if not torch.equal(row[exact], right[exact]) or not torch.allclose(row[4:6], right[4:6], rtol=1e-12, atol=1e-9):
            return f"one gave {row.tolist()} where {right.tolist()} is right"
    return ""
