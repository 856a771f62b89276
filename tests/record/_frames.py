"""Frames and tables of sites made by hand for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hookscope._core._frame import Frame
from hookscope._core._site import Site

Row = tuple[int, int, int, int, Sequence[float]]  # micro, site, call, seq, stats


def frame(step: int, rows: Sequence[Row]) -> Frame:
    places = np.array([row[:4] for row in rows], np.int32).reshape(-1, 4)
    stats = np.array([row[4] for row in rows], np.float64).reshape(-1, 8)
    return Frame(step, places[:, 0].copy(), places[:, 1].copy(), places[:, 2].copy(), places[:, 3].copy(), stats)


def stats_of(*values: float) -> tuple[float, ...]:
    """Stats of some finite numbers, by hand."""
    squares = sum(v * v for v in values)
    return (len(values), 0.0, 0.0, sum(v == 0 for v in values), sum(values), squares, min(values), max(values))


SITES = (
    Site(0, "fc", "output", module="fc", bases=("torch.nn.modules.linear.Linear",), shape=(4, 2), dtype="float32", device="cpu"),
    Site(1, "fc.weight", "param", module="fc", numel=2, trainable=True),
    Site(2, "fc.weight", "update", module="fc", numel=2, trainable=True),
    Site(3, "fc.weight", "param_grad", label="preclip", module="fc", aliases=("head.weight",), numel=2, sampled=1),
    Site(4, "lstm", "output", output_path="[0]", module="lstm"),
    Site(5, "lstm", "output", output_path="[1][0]", module="lstm"),
    Site(6, "loss", "loss"),
    Site(7, "lr", "scalar"),
)


def plain_frame(step: int) -> Frame:
    """Two micro-batches with an output and a loss each, then the parameter at step level."""
    return frame(
        step,
        [
            (0, 0, 0, 0, stats_of(step, 1.0)),
            (0, 6, 0, 1, stats_of(step + 0.5)),
            (1, 0, 0, 0, stats_of(step, 3.0)),
            (1, 6, 0, 1, stats_of(step + 1.5)),
            (-1, 1, 0, -1, stats_of(3.0, 4.0)),
            (-1, 2, 0, -1, stats_of(0.3, 0.4)),
        ],
    )
