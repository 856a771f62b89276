"""The step that is open: the rows gathered for it so far, and the frame they make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .._core._frame import STEP_LEVEL, Frame
from .._core._stats import WIDTH, Rows, merge_groups
from ._tap import MicroRows

MAX_MICROS = 64  # micro-batches kept apart within one step; beyond that they are merged, exactly, into one


class OpenStep:
    """Micro-batches in order, and one row for each site of the step as a whole; a later row of the same site replaces an earlier one."""

    def __init__(self, whole: dict[int, NDArray[np.float64]] | None = None) -> None:
        self.micros: list[MicroRows] = []
        self.whole: dict[int, NDArray[np.float64]] = whole or {}

    def add(self, micros: Iterable[MicroRows]) -> None:
        """Take micro-batches in; one may be empty."""
        self.micros = crowded(self.micros + list(micros))

    def put(self, sites: Sequence[int], rows: Rows) -> None:
        """Set rows of the step as a whole."""
        self.whole.update(zip(sites, rows, strict=True))

    def put_value(self, site: int, value: float) -> None:
        """Set a scalar."""
        if site >= 0:
            self.whole[site] = np.array(value_row(value))

    def put_values(self, values: Iterable[tuple[int, float]]) -> None:
        """Set several scalars."""
        for site, value in values:
            self.put_value(site, value)

    @property
    def bad(self) -> bool:
        """Whether anything gathered so far holds a NaN or an Inf."""
        return any(m.stats[:, 1:3].any() for m in self.micros) or any(row[1] or row[2] for row in self.whole.values())

    def frame(self, step: int) -> Frame:
        """All of it as one frame."""
        count = [len(m.site) for m in self.micros] + [len(self.whole)]
        level = np.full(len(self.whole), STEP_LEVEL, np.int32)
        zero = np.zeros(len(self.whole), np.int32)
        return Frame(
            step,
            micro=np.repeat(np.array([*range(len(self.micros)), STEP_LEVEL], np.int32), count),
            site=np.concatenate([*(m.site for m in self.micros), np.fromiter(self.whole, np.int32, len(self.whole))]),
            call=np.concatenate([*(m.call for m in self.micros), zero]),
            seq=np.concatenate([*(m.seq for m in self.micros), level]),
            stats=np.concatenate([*(m.stats for m in self.micros), np.array(list(self.whole.values())).reshape(-1, WIDTH)]),
        )


def value_row(value: float) -> tuple[float, ...]:
    """The stats of one number."""
    finite = np.isfinite(value)
    low, high = (value, value) if value == value else (np.inf, -np.inf)
    kept = value if finite else 0.0
    return 1.0, float(value != value), float(np.isinf(value)), float(value == 0), kept, kept * kept, low, high


def crowded(micros: list[MicroRows]) -> list[MicroRows]:
    """The same micro-batches, merged into one where there are too many to keep apart."""
    if len(micros) <= MAX_MICROS:
        return micros
    site, call, seq = (np.concatenate([getattr(m, name) for m in micros]) for name in ("site", "call", "seq"))
    stats = np.concatenate([m.stats for m in micros])
    order = np.lexsort((call, site))
    site, call, seq = site[order], call[order], seq[order]
    starts = np.flatnonzero(np.r_[True, (np.diff(site) != 0) | (np.diff(call) != 0)])
    merged = MicroRows(site[starts], call[starts], seq[starts], merge_groups(stats[order], starts))
    in_order = np.argsort(merged.seq, kind="stable")
    return [MicroRows(merged.site[in_order], merged.call[in_order], merged.seq[in_order], merged.stats[in_order])]
