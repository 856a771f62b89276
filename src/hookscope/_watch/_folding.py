"""Rows that were written one at a time, as arrays: the end of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._core._stats import WIDTH
from ._extras import Entry
from ._store import Store, unscaled
from ._tap import MicroRows

FEW = 8  # entries that are quicker read one by one


def folded(entries: Sequence[Entry], store: Store, *, plain: int, scale: float, full: bool) -> MicroRows:
    """`entries` as they are; from the one of number `plain` on, the stats have the factor `scale` in them, which is taken out."""
    hosts = [entry[3].host for entry in entries] if len(entries) <= FEW else [None]
    known = [host for host in hosts if host is not None]
    stats = np.array(known).reshape(-1, WIDTH) if len(known) == len(hosts) else store.read([entry[3] for entry in entries])
    stats[plain:] = unscaled(stats[plain:], scale)
    site, call, seq = np.array([entry[:3] for entry in entries], np.int32).reshape(-1, 3).T
    return MicroRows(site, call, seq, stats, full)
