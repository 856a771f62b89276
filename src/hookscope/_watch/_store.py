"""The rows of one watch, on every device its tensors live on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from .._core._stats import WIDTH, Rows
from .._stats import Cells, Row


def unscaled(rows: Rows, scale: float) -> Rows:
    """The stats of the same tensors divided by `scale`, a positive number."""
    return rows if scale == 1.0 else unscaled_by(rows, [scale] * len(rows))


def unscaled_by(rows: Rows, scales: Sequence[float] | NDArray[np.float64]) -> Rows:
    """The same with a factor for each row."""
    by = np.asarray(scales, np.float64)
    if (by == 1.0).all():
        return rows
    one = np.ones_like(by)
    return rows * np.stack([one, one, one, one, 1 / by, 1 / by**2, 1 / by, 1 / by], axis=1)


class Store:
    """Hands out rows beside the tensors they are for, and reads them back in any mixture."""

    def __init__(self) -> None:
        self._cells: dict[torch.device, Cells] = {}

    def row(self, tensor: torch.Tensor) -> Row:
        """A new row on the device of `tensor`."""
        return self.cells(tensor.device).row()

    def cells(self, device: torch.device) -> Cells:
        """All rows on that device."""
        if device not in self._cells:
            self._cells[device] = Cells(device)
        return self._cells[device]

    def merge(self, into: Row, row: Row) -> None:
        """Make `into` the stats of both rows' tensors taken together; both are on one device, which is not waited for."""
        mine, other = into.view[0], row.view[0]
        mine[:6] += other[:6]
        torch.minimum(mine[6], other[6], out=mine[6])
        torch.maximum(mine[7], other[7], out=mine[7])

    def read(self, rows: Sequence[Row]) -> Rows:
        """The numbers in `rows`, [n, 8] on the host, in their order."""
        if not rows:
            return np.empty((0, WIDTH))
        if len(self._cells) == 1:
            return next(iter(self._cells.values())).read(rows)
        read = np.empty((len(rows), WIDTH))
        devices = [row.view.device for row in rows]
        for device, cells in self._cells.items():
            here = [i for i, d in enumerate(devices) if d == device]
            if here:
                read[here] = cells.read([rows[i] for i in here])
        return read
