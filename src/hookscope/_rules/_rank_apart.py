"""One rank whose loss or whose own gradients are far from those of the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .._core._finding import Finding
from .._record import Run
from ._ranks import averaged, beside
from ._step import sites_of

TIMES = 10.0
AT_LEAST = 20  # steps
SHARE = 0.9  # of them


def rank_apart(run: Run, *, times: float = TIMES, at_least: int = AT_LEAST) -> Iterator[Finding]:
    """The loss, or the norm of a rank's own gradients, is persistently far from that of the other ranks.

    Fires where it is `times` as large as, or as small as a `times`-th of, the median of the other ranks in 9 of 10 of at least `at_least`
    steps that all ranks have recorded (source: ranks that draw from one data set have losses of one distribution, whose means differ by
    far less than a factor of ten for long).

    Ignores losses that are not positive, single steps, and runs whose gradients are not averaged over ranks.

    Causes: a shard of the data that is of another kind, badly scaled or broken; a device that computes wrongly.
    Do: look at the samples of that rank; let it train with another rank's samples, to tell data from device.
    """
    if not averaged(run):
        return
    for what, all_steps, all_values in _measures(run):
        there = (all_values > 0).all(axis=1) & np.isfinite(all_values).all(axis=1)
        steps, values = all_steps[there], all_values[there]
        ratios = values / _median_of_others(values) if len(steps) >= at_least else values
        for rank, ratio in zip(run.ranks if len(steps) >= at_least else (), ratios.T, strict=False):
            far = ratio > times
            if not far.mean() >= SHARE and len(run.ranks) > 2:  # of two, the larger is named
                far = ratio < 1 / times
            if far.mean() >= SHARE:
                yield _finding(what, rank, steps[far], float(np.median(ratio)), len(steps))
                return


def _median_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[step, rank] the median of a step's numbers without that rank's own."""
    ordered = np.sort(values, axis=1)
    others = values.shape[1] - 1
    middle = [np.where(ordered[:, [at]] < values, ordered[:, [at]], ordered[:, [at + 1]]) for at in {(others - 1) // 2, others // 2}]
    mean: NDArray[np.float64] = np.mean(middle, axis=0)
    return mean


def _finding(what: str, rank: int, far: NDArray[np.int64], ratio: float, steps: int) -> Finding:
    return Finding(
        rule="rank-apart",
        severity="warning",
        message=f"the {what} of rank {rank} is {ratio:.3g} times that of the other ranks, in {len(far)} of {steps} steps",
        first_step=int(far[0]),
        last_step=int(far[-1]),
        where="data",
        phase="data",
        rank=rank,
        causes=("the samples of that rank are of another kind, or broken", "its device computes wrongly"),
        advice=("look at the samples of that rank", "give it another rank's samples, to tell data from device"),
        evidence={"ratio": ratio, "steps": steps},
    )


def _measures(run: Run) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.float64]]]:
    """A name, steps, and one number a step and rank."""
    for site in sites_of(run, "loss"):
        steps, _, stats = beside(run, site)
        yield "loss", steps, stats[:, :, 4] / stats[:, :, 0]
    own = sites_of(run, "param_grad", label="local")
    if own:
        yield "norm of the own gradients", run.steps, np.sqrt(run.table.squares(own))
