"""Rows written by the kernels for GPUs: one tensor with two launches, a list of them with two for each dtype."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from ._plain import FLOATS


class Element(NamedTuple):
    """How the kernels read a dtype: as which integers, the bits of infinity, and the dtype that minimum and maximum are made in."""

    name: str
    bits: str
    infinity: int
    wide: str


ELEMENTS = {
    torch.float32: Element("float32", "int32", 0x7F80_0000, "float32"),
    torch.float64: Element("float64", "int64", 0x7FF0_0000_0000_0000, "float64"),
    torch.float16: Element("float16", "int16", 0x7C00, "float32"),
    torch.bfloat16: Element("bfloat16", "int16", 0x7F80, "float32"),
}
assert tuple(ELEMENTS) == FLOATS


# Said aloud, because releases of Triton differ in what they take for granted. The square of a float32 is exact in float64 either way.
FUSED = {"enable_fp_fusion": True}


class Work(NamedTuple):
    """Who reads what: a tensor's size and the first of its columns; a column's tensor and the element it begins at. All [.] int64."""

    sizes: torch.Tensor
    firsts: torch.Tensor
    owners: torch.Tensor
    starts: torch.Tensor


def reduce_one(row: torch.Tensor, flat: torch.Tensor) -> None:
    """Overwrite `row`, [8] float64, with the stats of a contiguous one-dimensional tensor on the same device."""
    kernels = _kernels()
    n = flat.numel()
    columns = -(-n // kernels.SPAN)
    with _current(flat.device):
        parts = _parts(columns, flat.device)
        if columns:
            kernels.read_one[(columns,)](flat, n, parts, columns, block=kernels.BLOCK, span=kernels.SPAN, **_constants(flat.dtype))
        kernels.merge_one[(1,)](parts, columns, columns, n, row, block=kernels.PARTS, **FUSED)


def reduce_list(rows: Sequence[torch.Tensor], flats: Sequence[torch.Tensor]) -> None:
    """The same for many pairs of a row and a tensor, all on one device.

    A large tensor is read by many programs and a small one by one, so that neither waits for the other. The list of who reads what is kept
    from call to call for tensors of the same sizes, and the addresses for tensors in the same places.
    """
    groups: dict[torch.dtype, list[int]] = {}
    for i, flat in enumerate(flats):
        groups.setdefault(flat.dtype, []).append(i)
    for dtype, group in groups.items():
        _reduce_alike([rows[i] for i in group], [flats[i] for i in group], dtype)


def _reduce_alike(rows: list[torch.Tensor], flats: list[torch.Tensor], dtype: torch.dtype) -> None:
    kernels, device = _kernels(), flats[0].device
    with _current(device):
        stream = _stream(device)
        work = _work(tuple(flat.numel() for flat in flats), device, stream)
        places = tuple(flat.data_ptr() for flat in flats)
        addresses = _upload((places, tuple(row.data_ptr() for row in rows)), device, stream)
        columns = len(work.owners)
        parts = _parts(columns, device)
        if columns:
            kernels.read_list[(columns,)](
                addresses[0],
                work.sizes,
                work.owners,
                work.starts,
                parts,
                columns,
                element=getattr(kernels.tl, ELEMENTS[dtype].name),
                aligned=all(place % 16 == 0 for place in places),
                block=kernels.BLOCK,
                span=kernels.SPAN,
                **_constants(dtype),
            )
        kernels.merge_list[(len(flats),)](parts, columns, work.firsts, work.sizes, addresses[1], block=kernels.PARTS, **FUSED)


def _kernels() -> ModuleType:
    from . import _triton

    return _triton


def _constants(dtype: torch.dtype) -> dict[str, Any]:
    element, tl = ELEMENTS[dtype], _kernels().tl
    return {"bits": getattr(tl, element.bits), "infinity": element.infinity, "wide": getattr(tl, element.wide), **FUSED}


def _parts(columns: int, device: torch.device) -> torch.Tensor:
    return torch.empty(7, columns, dtype=torch.float64, device=device)


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


@lru_cache(maxsize=64)
def _work(sizes: tuple[int, ...], device: torch.device, stream: int) -> Work:
    size = np.array(sizes, np.int64)
    columns = -(-size // _kernels().SPAN)
    firsts = np.concatenate([[0], np.cumsum(columns)])
    owners = np.repeat(np.arange(len(size)), columns)
    starts = (np.arange(len(owners)) - firsts[owners]) * _kernels().SPAN
    tables = _upload((tuple(np.concatenate([size, firsts, owners, starts]).tolist()),), device, stream)[0]
    return Work(*torch.split(tables, [len(size), len(firsts), len(owners), len(owners)]))


@lru_cache(maxsize=64)
def _upload(numbers: tuple[tuple[int, ...], ...], device: torch.device, stream: int) -> torch.Tensor:  # noqa: ARG001  # part of the cache's key
    """Whole numbers as a tensor on the device; the host does not wait.

    Kept by value and by `stream`: on another stream the copy might not have been made yet. Pinned memory is not reused before it was.
    """
    with torch.inference_mode(mode=False):
        pinned = device.type == "cuda"
        return torch.tensor(numbers, dtype=torch.int64, device="cpu", pin_memory=pinned).to(device, non_blocking=pinned)
