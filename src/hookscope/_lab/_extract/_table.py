"""Extracted tensors as a table of text: site, call, shape, dtype, size."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ._key import Key

_SHOWN = 40


def table(tensors: Mapping[Key, torch.Tensor]) -> str:
    """A line for each tensor, the first forty of them, and one for all."""
    total = sum(map(size, tensors.values()))
    head = f"{len(tensors)} tensor{'' if len(tensors) == 1 else 's'}, {as_bytes(total)}"
    rows = [("site", "call", "shape", "dtype", "size"), *(_row(key, tensor) for key, tensor in list(tensors.items())[:_SHOWN])]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    more = [f"... and {len(tensors) - _SHOWN} more"] if len(tensors) > _SHOWN else []
    return "\n".join([head, *(lines if tensors else []), *more])


def _row(key: Key, tensor: torch.Tensor) -> tuple[str, ...]:
    shape = " × ".join(map(str, tensor.shape)) or "scalar"
    return key.site.name, str(key.call), shape, str(tensor.dtype).removeprefix("torch."), as_bytes(size(tensor))


def size(tensor: torch.Tensor) -> int:
    """Bytes of its elements."""
    return tensor.numel() * tensor.element_size()


def as_bytes(count: int) -> str:
    """`512 B`, `1.5 KiB`."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
