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

    def __init__(self) -> None:
        self.micros: list[MicroRows] = []
        self._blocks: list[tuple[NDArray[np.int32], Rows]] = []

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def add(self, micros: Iterable[MicroRows]) -> None:
        """Take micro-batches in; one may be empty."""
        self.micros = crowded(self.micros + list(micros))

    def put(self, sites: Sequence[int], rows: Rows) -> None:
        """Set rows of the step as a whole; a site of -1 is left out."""
        numbers = np.array(sites, np.int32)
        if len(numbers) and numbers.min() < 0:
            numbers, rows = numbers[numbers >= 0], rows[numbers >= 0]
        if len(numbers):
            self._blocks.append((numbers, rows))

    def put_values(self, values: Iterable[tuple[int, float]]) -> None:
        """Set scalars; one that nobody wants has the site -1."""
        wanted = [(site, value_row(value)) for site, value in values if site >= 0]
        if wanted:
            self.put([site for site, _ in wanted], np.array([row for _, row in wanted]))

    def put_value(self, site: int, value: float) -> None:
        """Set one."""
        self.put_values([(site, value)])

    def holds(self, site: int) -> bool:
        """Whether there is a row of this site."""
        return any(site in sites for sites, _ in self._blocks)

    @property
    def bad(self) -> bool:
        """Whether anything gathered so far holds a NaN or an Inf."""
        return any(rows[:, 1:3].any() for rows in (*(m.stats for m in self.micros), *(rows for _, rows in self._blocks)))

    def bad_at(self, wanted: NDArray[np.bool_]) -> bool:
        """Whether a micro-batch holds one at one of these sites."""
        return any(bool(m.stats[wanted[m.site], 1:3].any()) for m in self.micros)

    def frame(self, step: int) -> Frame:
        """All of it as one frame."""
        sites = np.concatenate([np.zeros(0, np.int32), *(sites for sites, _ in self._blocks)])
        rows = np.concatenate([np.zeros((0, WIDTH)), *(rows for _, rows in self._blocks)])
        latest = np.array([*dict(zip(sites.tolist(), range(len(sites)), strict=True)).values()], np.intp)
        count = [len(m.site) for m in self.micros] + [len(latest)]
        zero = np.zeros(len(latest), np.int32)
        return Frame(
            step,
            micro=np.repeat(np.array([*range(len(self.micros)), STEP_LEVEL], np.int32), count),
            site=np.concatenate([*(m.site for m in self.micros), sites[latest]]),
            call=np.concatenate([*(m.call for m in self.micros), zero]),
            seq=np.concatenate([*(m.seq for m in self.micros), zero + np.int32(STEP_LEVEL)]),
            stats=np.concatenate([*(m.stats for m in self.micros), rows[latest]]),
        )


def value_row(value: float) -> tuple[float, ...]:
    """The stats of one number."""
    finite = np.isfinite(value)
    low, high = (value, value) if value == value else (np.inf, -np.inf)
    kept = value if finite else 0.0
    return 1.0, float(value != value), float(np.isinf(value)), float(value == 0), kept, kept * kept, low, high


def superseded(micros: list[MicroRows], by: MicroRows, running: Sequence[int]) -> list[MicroRows]:
    """Earlier micro-batches without the rows of running sums that a later one has brought on."""
    if not running or not micros:
        return micros
    again = by.site[np.isin(by.site, running)]
    return [_without(micro, again) for micro in micros]


def _without(micro: MicroRows, sites: NDArray[np.int32]) -> MicroRows:
    kept = ~np.isin(micro.site, sites)
    return micro if kept.all() else MicroRows(micro.site[kept], micro.call[kept], micro.seq[kept], micro.stats[kept], micro.full)


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
