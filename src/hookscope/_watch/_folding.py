"""Rows that were written one at a time, as arrays: the end of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._core._stats import WIDTH, Rows
from ._extras import Entry
from ._fields import NATIVE
from ._slot import Slot
from ._store import Store, unscaled
from ._tap import MicroRows

FEW = 8  # entries that are quicker read one by one


@dataclass(frozen=True, slots=True)
class Read:
    """What slots hold; `outputs` of the rows come first, those of gradients follow. `numbers` [3, n] are site, call and place in order."""

    outputs: int
    numbers: NDArray[np.int32]
    stats: Rows


def read_slots(outputs: list[Slot], gradients: list[Slot], store: Store) -> Read:
    """Of these slots, and of those that follow the ones with gradients."""
    found = None if NATIVE is None else NATIVE.rows(outputs, gradients)
    if found is not None:
        numbers, stats = np.frombuffer(found[1], np.int32), np.frombuffer(found[2])
        return Read(found[0], numbers.reshape(3, -1), stats.reshape(-1, WIDTH))
    entries: list[Entry] = [(slot.output_site, slot.call, slot.seq, slot.source_row) for slot in outputs if slot.source_row is not None]
    count = len(entries)
    for slot in gradients:
        if (row := slot.grad_row) is not None:
            entries += [(s.grad_site, s.call, s.seq, row) for s in (slot, *slot.followers) if s.grad_site >= 0]
    return Read(count, *_arrays(entries, store))


def folded(entries: tuple[list[Entry], list[Entry]], read: Read, store: Store, *, scale: float, full: bool) -> MicroRows:
    """`entries` are inputs, which come before the outputs, and what comes before the gradients: losses. These and gradients have the
    factor `scale` in them, which is taken out.
    """
    inputs, others = entries
    numbers, stats = _arrays(inputs + others, store)
    at, first = len(inputs), read.outputs
    parts = (numbers[:, :at], read.numbers[:, :first], numbers[:, at:], read.numbers[:, first:])
    site, call, seq = np.concatenate(parts, axis=1)
    rows = np.concatenate((stats[:at], read.stats[:first], unscaled(stats[at:], scale), unscaled(read.stats[first:], scale)))
    return MicroRows(site, call, seq, rows, full)


def _arrays(entries: Sequence[Entry], store: Store) -> tuple[NDArray[np.int32], Rows]:
    hosts = [entry[3].host for entry in entries] if len(entries) <= FEW else [None]
    known = [host for host in hosts if host is not None]
    stats = np.array(known).reshape(-1, WIDTH) if len(known) == len(hosts) else store.read([entry[3] for entry in entries])
    return np.array([entry[:3] for entry in entries], np.int32).reshape(-1, 3).T, stats
