"""What is looked at in a step that is left out, where it lies on a device: sent to the host, and looked at when it has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from .._core._stats import Rows
from .._stats import Ring, Row, reduce_into
from .._taps._modes import unseen
from ._extras import Entry
from ._store import Store
from ._tap import MicroRows


@dataclass(slots=True, eq=False)
class FarGlimpse:
    """As a `Glimpse`, but for the numbers, which may be on their way."""

    entries: Sequence[Entry]
    are_losses: Sequence[bool]
    afar: Afar
    stats: Rows | None = field(default=None, init=False)  # of the entries, and in the last row of the norms of all gradients

    def rows(self) -> MicroRows:
        """The same as arrays; waits for them."""
        if self.stats is None:
            self.afar.wait()
        assert self.stats is not None
        site, call, seq = np.array([entry[:3] for entry in self.entries], np.int32).reshape(-1, 3).T
        return MicroRows(site, call, seq, self.stats[:-1], False)

    @property
    def losses(self) -> list[list[float]]:
        """The stats of what is a loss."""
        return [row for row, is_loss in zip(self._read, self.are_losses, strict=True) if is_loss]

    @property
    def others(self) -> list[list[float]]:
        """And of what is not."""
        return [row for row, is_loss in zip(self._read, self.are_losses, strict=True) if not is_loss]

    @property
    def of_gradients(self) -> tuple[float, float]:
        """How many gradients hold what is not finite, and the sum of squares of the others."""
        assert self.stats is not None
        return float(self.stats[-1, 1:3].sum()), float(self.stats[-1, 5])

    @property
    def _read(self) -> list[list[float]]:
        assert self.stats is not None
        read: list[list[float]] = self.stats[:-1].tolist()
        return read


class Afar:
    """`send` what a step has shown; `arrived` is what was sent earlier. Neither waits for the device. `on` is false where alarms may not
    come a step late.
    """

    def __init__(self, store: Store) -> None:
        self.on = True
        self._store = store
        self._rings: dict[torch.device, Ring[FarGlimpse]] = {}
        self._norms: dict[torch.device, Row] = {}
        self._arrived: list[FarGlimpse] = []

    def gradients(self, entries: Sequence[Entry], parameters: Sequence[nn.Parameter]) -> list[torch.Tensor] | None:
        """Those to send with the entries; None if these or those do not all lie on one device, or are no ordinary tensors."""
        devices = {entry[3].view.device for entry in entries}
        found = [p.grad for p in parameters if p.grad is not None]
        for grad in found:
            if type(grad) is not torch.Tensor or grad.layout is not torch.strided or not grad.is_floating_point():
                return None
            devices.add(grad.device)
        return found if found and len(devices) == 1 else None

    def send(self, entries: Sequence[Entry], are_losses: Sequence[bool], gradients: list[torch.Tensor]) -> FarGlimpse | None:
        """Begin to copy; None, and nothing sent, where that cannot be done now."""
        device = gradients[0].device
        if device not in self._rings:
            self._norms[device] = self._store.row(gradients[0])
            self._rings[device] = Ring(self._store.cells(device))
        row, glimpse = self._norms[device], FarGlimpse(list(entries), are_losses, self)
        with torch.no_grad(), unseen():
            wide = torch.float64 if any(g.dtype is torch.float64 for g in gradients) else torch.float32
            reduce_into(row, torch.stack(torch._foreach_norm(gradients, dtype=wide)))
            sent = self._rings[device].send(glimpse, [*(entry[3] for entry in entries), row])
        return glimpse if sent else None

    def arrived(self) -> list[FarGlimpse]:
        """What has come since the last call, the oldest first."""
        self._take(exact=False)
        arrived, self._arrived = self._arrived, []
        return arrived

    def wait(self) -> None:
        """Until all of it has come."""
        self._take(exact=True)

    def _take(self, *, exact: bool) -> None:
        for ring in self._rings.values():
            for glimpse, stats in ring.take(exact=exact):
                glimpse.stats = stats
                self._arrived.append(glimpse)
