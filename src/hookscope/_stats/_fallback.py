"""The eight stats in torch operations alone: for every device, for compiled graphs, and for CPUs without the native kernel."""

from __future__ import annotations

import math

import torch

# Torch splits an operation over CPU threads above this many elements. On a busy machine waiting for a second thread costs a scheduler's
# slice (milliseconds) an operation, so a chunk stays at the limit.
CPU_CHUNK = 32768
DEVICE_CHUNK = 1 << 22  # fills a GPU, and keeps the float64 copies of a chunk near 100 MB
HALVES = (torch.float16, torch.bfloat16)


def stats_of(x: torch.Tensor, accumulate: torch.dtype = torch.float64) -> torch.Tensor:
    """The stats of a plain strided real tensor: [8] in `accumulate`, on its device, in the order of `Stats`.

    Tensor operations only: nothing is read back to the host and no branch depends on a value, so it can stand inside `torch.compile`.
    A compiled kernel would keep a half-precision producer in float32 and count what is never stored (no overflow, no underflow); the
    exclusive or with 0 makes it round first.

    >>> stats_of(torch.tensor([1.0, -2.0, 0.0, float("inf")])).tolist()
    [4.0, 0.0, 1.0, 1.0, -1.0, 5.0, -2.0, inf]
    """
    if x.numel() == 0:
        return torch.stack([_constant(v, x, accumulate) for v in (0.0,) * 6 + (math.inf, -math.inf)])
    if x.dtype in HALVES and torch.compiler.is_compiling():
        x = (x.view(torch.int16) ^ 0).view(x.dtype)
    if not x.is_floating_point():
        x = x.to(accumulate)
    nan, inf = torch.ne(x, x), x.abs() == math.inf  # inductor makes isnan and isinf scalar calls on CPU
    finite = torch.where(nan | inf, 0.0, x)
    cells = [
        _constant(float(x.numel()), x, accumulate),
        nan.sum(dtype=accumulate),
        inf.sum(dtype=accumulate),
        (x == 0).sum(dtype=accumulate),
        finite.sum(dtype=accumulate),
        finite.to(accumulate).square().sum(),
        torch.where(nan, math.inf, x).amin().to(accumulate),
        torch.where(nan, -math.inf, x).amax().to(accumulate),
    ]
    return torch.stack(cells)


def stats_in_chunks(flat: torch.Tensor, accumulate: torch.dtype = torch.float64) -> torch.Tensor:
    """The same for a one-dimensional tensor of any length, eagerly, with a bounded amount of extra memory.

    >>> stats_in_chunks(torch.ones(100_000)).tolist()
    [100000.0, 0.0, 0.0, 0.0, 100000.0, 100000.0, 1.0, 1.0]
    """
    size = CPU_CHUNK if flat.is_cpu else DEVICE_CHUNK
    parts = [_chunk_stats(chunk.to(accumulate)) for chunk in torch.split(flat, size)]
    if len(parts) == 1:
        return parts[0]
    rows = torch.stack(parts)
    return torch.cat([rows[:, :6].sum(0), rows[:, 6:7].amin(0), rows[:, 7:].amax(0)])


def _chunk_stats(x: torch.Tensor) -> torch.Tensor:
    """On a CPU, where looking at a value costs no wait, a chunk is spared the masks (three quarters of the time) if all is finite."""
    if not x.is_cpu or not x.numel():
        return stats_of(x, x.dtype)
    sumsq = x.square().sum().item()
    if not math.isfinite(sumsq):
        return stats_of(x, x.dtype)
    low, high = torch.aminmax(x)
    zeros = x.numel() - int(torch.count_nonzero(x))
    cells = [float(x.numel()), 0.0, 0.0, float(zeros), x.sum().item(), sumsq, low.item(), high.item()]
    return torch.tensor(cells, dtype=x.dtype, device="cpu")


def _constant(value: float, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((), value, dtype=dtype, device=like.device)
