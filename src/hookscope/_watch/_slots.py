"""The places of sites in a message that ranks add up: the same on all ranks, whatever number each of them gives a site."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .._core._frame import STEP_LEVEL, Frame
from .._core._site import Site
from .._core._stats import WIDTH, Rows, merge_groups
from .._record import FLAT, parts_in_all, shared

NUMBERS = 6  # of the eight stats that add up
_INSIDE = ("input", "output", "output_grad", "loss")  # kinds that belong to a micro-batch


class Slots:
    """One place a site, all its micro-batches and calls together; without scalars and evaluations, which one rank alone may have.

    `print` is equal on ranks whose sites are. What ranks hold in common is sent in equal shares, so that it counts once.
    """

    def __init__(self, sites: Sequence[Site], world: int) -> None:
        self._table = sorted((s for s in sites if s.kind != "scalar" and s.label != "eval"), key=lambda s: s.name)
        self._slots = np.full(len(sites), -1, np.int64)
        self._slots[[s.id for s in self._table]] = np.arange(len(self._table))
        self._ids = np.array([s.id for s in self._table], np.int32)
        self._inside = np.array([s.kind in _INSIDE for s in self._table], bool)
        self._share = np.array([_share(site, world) for site in self._table])
        self._seq = np.zeros(len(self._table), np.int32)
        self.print = zlib.crc32("\n".join(s.name for s in self._table).encode())

    def __len__(self) -> int:
        return len(self._table)

    def fill(self, stats: Rows, frame: Frame) -> None:
        """Put the rows of a frame into their places; what has come up since these were agreed on is left out."""
        known = np.flatnonzero(frame.site < len(self._slots))
        slot = self._slots[frame.site[known]]
        order = np.argsort(slot, kind="stable")[np.count_nonzero(slot < 0) :]
        slot, rows = slot[order], known[order]
        starts = np.flatnonzero(np.diff(slot, prepend=-1))
        stats[slot[starts]] = merge_groups(frame.stats[rows], starts)
        stats[: len(self), :NUMBERS] *= self._share[:, None]
        self._seq = np.full(len(self), np.iinfo(np.int32).max, np.int32)
        self._seq[slot[starts]] = frame.seq[rows[starts]]

    def frame(self, step: int, total: NDArray[np.float64], extremes: NDArray[np.float64]) -> Frame:
        """What all ranks have sent, in the order in which this one runs; `extremes` are maxima and negative minima."""
        stats = np.empty((len(self), WIDTH))
        stats[:, :NUMBERS] = total[: len(self)]
        stats[:, 7], stats[:, 6] = extremes[: len(self), 0], -extremes[: len(self), 1]
        seen = np.flatnonzero(stats[:, 0] > 0)
        inside = self._inside[seen]
        micro = np.where(inside, 0, STEP_LEVEL).astype(np.int32)
        seq = np.where(inside, self._seq[seen], STEP_LEVEL).astype(np.int32)
        return Frame(step, micro, self._ids[seen], np.zeros(len(seen), np.int32), seq, stats[seen])


def _share(site: Site, world: int) -> float:
    """Of what a rank holds in common with others, what it sends, if all ranks hold a part of one size."""
    if not shared(site) or site.part.startswith(FLAT):
        return 1.0
    return parts_in_all(site.part, site.shape or ()) / world
