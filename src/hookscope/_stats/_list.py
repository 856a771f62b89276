"""Many tensors, each into its row: those on a GPU together, with two launches for each dtype, the others one by one."""

from __future__ import annotations

import torch

from . import _device
from ._cells import Row
from ._launch import reduce_list
from ._plain import flat, plain
from ._reduce import reduce_into


class Listed:
    """`add` as many as there are, then `write`: until then some of the rows are as they were.

    >>> from hookscope._stats import Cells
    >>> cells = Cells("cpu")
    >>> rows, listed = [cells.row(), cells.row()], Listed()
    >>> [listed.add(row, tensor) for row, tensor in zip(rows, [torch.ones(3), torch.ones(2, device="meta")])]
    [True, False]
    >>> listed.write()
    """

    def __init__(self) -> None:
        self._pairs: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def add(self, row: Row, tensor: torch.Tensor) -> bool:
        """What `reduce_into` returns. The tensor has to stay as it is until `write`."""
        values = _together(row, tensor)
        if values is None:
            return reduce_into(row, tensor)
        self._pairs.setdefault(values.device, []).append((row.view[0], values))
        return True

    def write(self) -> None:
        """Every row that was added is written after this."""
        for pairs in self._pairs.values():
            reduce_list(*zip(*pairs, strict=True))
        self._pairs = {}


def _together(row: Row, tensor: torch.Tensor) -> torch.Tensor | None:
    """The elements in a stretch of memory, where that is all there is to a tensor and the kernels for lists can read it."""
    if row.pointer or (found := plain(tensor)) is None or found.values.device != row.view.device:
        return None
    if found.repeats != 1 or found.implicit_zeros or not _device.reducible(found.values):
        return None
    return flat(found.values)
