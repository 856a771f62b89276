"""The numbers of a step on their way to the host: one copy that nobody waits for, read a step later."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from hookscope._core._errors import UsageError
from hookscope._core._stats import Rows

from ._cells import Cells, Row

Tag = TypeVar("Tag")


class Event(Protocol):
    """Something that is over, or will be."""

    def query(self) -> bool:
        """Whether it is over, without waiting."""

    def synchronize(self) -> None:
        """Wait until it is."""


class Copier(Protocol):
    """A way of getting numbers from a device to the host."""

    def memory(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A place for so many rows on the device, and one on the host that copies can be made into."""

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> Event:
        """Begin to copy what `source` holds after the work queued so far; the event is over when `target` holds it."""

    def usable(self) -> bool:
        """Whether a copy may begin, or an event be asked, at this moment."""


@dataclass(slots=True)
class _Slot:
    """A stretch of the device's memory and of the host's that only one copy at a time goes through."""

    here: torch.Tensor
    host: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Sent(Generic[Tag]):
    tag: Tag
    places: NDArray[np.intp]
    slot: _Slot
    event: Event


class Ring(Generic[Tag]):
    """Hands rows over from a device in the order in which they were sent, each set under the tag it was sent with.

    `send` takes the numbers as they will be once the work queued so far is done, so that the rows may be written again at once; `take`
    returns what has arrived. Neither waits for the device, but for one case: if `depth` sets are still on their way, `send` waits for the
    oldest, and counts it in `waits`. The device then has the work of `depth - 1` steps before it and does not stand idle; dropping the set
    would lose a step, and writing over it would mix two. On a CPU every set has arrived when `send` returns.

    One thread at a time. A copy is queued on the current stream, so the rows have to be written on it, or on one that it waits for.

    >>> cells = Cells("cpu")
    >>> row = cells.row()
    >>> ring = Ring(cells)
    >>> for step in range(2):
    ...     _ = row.view.fill_(step + 0.5)
    ...     _ = ring.send(step, [row])
    >>> [(step, rows[0, 0].item()) for step, rows in ring.take()]
    [(0, 0.5), (1, 1.5)]
    """

    def __init__(self, cells: Cells, *, depth: int = 3, copier: Copier | None = None) -> None:
        if depth < 1:
            raise UsageError(f"depth={depth}: at least one set of rows has to have a place")
        self.waits = 0
        self._cells, self._depth = cells, depth
        self._copier = copier or copier_for(cells)
        self._free: list[_Slot] = []
        self._sent: deque[_Sent[Tag]] = deque()
        self._arrived: list[tuple[Tag, Rows]] = []

    def send(self, tag: Tag, rows: Sequence[Row]) -> bool:
        """Begin to copy the numbers in `rows`; False, and nothing sent, while a CUDA graph is being captured."""
        if not self._copier.usable():
            return False
        if len(self._sent) == self._depth:
            self.waits += not self._sent[0].event.query()
            self._receive()
        places = np.array([row.place for row in rows], np.intp)
        slot = self._slot()
        self._cells.gather(slot.here)
        self._sent.append(_Sent(tag, places, slot, self._copier.copy(slot.here, slot.host)))
        return True

    def take(self, *, exact: bool = False) -> list[tuple[Tag, Rows]]:
        """What has arrived since the last call, oldest first: tags, and [n, 8] float64 in the order of the rows sent.

        A set that has overtaken an older one stays until that has arrived, too. `exact` waits for all that was sent.
        """
        while self._sent and self._copier.usable() and (exact or self._sent[0].event.query()):
            self._receive()
        arrived, self._arrived = self._arrived, []
        return arrived

    def close(self) -> list[tuple[Tag, Rows]]:
        """Wait for all that was sent, return it, and let go of the memory."""
        arrived = self.take(exact=True)
        self._free = []
        return arrived

    def _receive(self) -> None:
        sent = self._sent[0]
        sent.event.synchronize()  # before it leaves the queue: where the device has failed this raises, and no number is made up
        self._sent.popleft()
        self._arrived.append((sent.tag, sent.slot.host.numpy()[sent.places].astype(np.float64)))
        self._free.append(sent.slot)

    def _slot(self) -> _Slot:
        rows = self._cells.capacity
        slot = self._free.pop() if self._free else None
        if slot is None or len(slot.host) < rows:  # the first round, or there are more rows than before
            slot = _Slot(*self._copier.memory(rows))
        return slot


def copier_for(cells: Cells) -> Copier:
    """Asynchronous where the device has streams and the host memory that it can write to."""
    return _Queued(cells) if cells.device.type in ("cuda", "xpu") else _Immediate(cells)


class _Immediate:
    """A copy that is over when it returns; on a device without streams of its own it waits for the device."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    def memory(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        here = self._cells.memory(rows)
        return here, here if here.is_cpu else torch.empty_like(here, device="cpu")

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> Event:
        if target is not source:
            target.copy_(source)
        return self

    def usable(self) -> bool:
        return True

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class _Queued:
    """A copy into pinned memory, queued behind the device's work of the current stream."""

    def __init__(self, cells: Cells) -> None:
        self._cells, self._module = cells, getattr(torch, cells.device.type)

    def memory(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        here = self._cells.memory(rows)
        with torch.inference_mode(mode=False):
            return here, torch.empty(here.shape, dtype=here.dtype, device="cpu", pin_memory=True)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> Event:
        target.copy_(source, non_blocking=True)
        event: Event = self._module.Event()
        event.record(self._module.current_stream(self._cells.device))  # type: ignore[attr-defined]  # the device's, not the current device's
        return event

    def usable(self) -> bool:
        return not (self._cells.device.type == "cuda" and torch.cuda.is_current_stream_capturing())
