"""Many tensors, each into its row: those on a GPU together, with two launches for each dtype, the others one by one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import _device
from ._cells import Row
from ._launch import reduce_list
from ._plain import flat, plain
from ._reduce import reduce_into


def reduce_all_into(rows: Sequence[Row], tensors: Sequence[torch.Tensor]) -> list[bool]:
    """What `reduce_into` does for each pair, and for each what it returns.

    >>> from hookscope._stats import Cells
    >>> cells = Cells("cpu")
    >>> rows = [cells.row(), cells.row()]
    >>> reduce_all_into(rows, [torch.ones(3), torch.ones(2, device="meta")])
    [True, False]
    """
    written = [False] * len(rows)
    together: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for i, (row, tensor) in enumerate(zip(rows, tensors, strict=True)):
        values = _together(row, tensor)
        if values is None:
            written[i] = reduce_into(row, tensor)
        else:
            together.setdefault(values.device, []).append((row.view[0], values))
            written[i] = True
    for pairs in together.values():
        reduce_list(*zip(*pairs, strict=True))
    return written


def _together(row: Row, tensor: torch.Tensor) -> torch.Tensor | None:
    """The elements in a stretch of memory, where that is all there is to a tensor and the kernels for lists can read it."""
    if row.pointer or (found := plain(tensor)) is None or found.values.device != row.view.device:
        return None
    if found.repeats != 1 or found.implicit_zeros or not _device.reducible(found.values):
        return None
    return flat(found.values)
