"""Ranks that should see different samples see the same ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .._core._finding import Finding
from .._record import Run
from ._ranks import averaged, beside
from ._step import sites_of

AT_LEAST = 3  # steps


def rank_data(run: Run, *, at_least: int = AT_LEAST) -> Iterator[Finding]:
    """Two ranks are given the same batches.

    Fires where the stats of what a model is given are equal to the last bit on two ranks in every step, at least `at_least` of them, and
    change from step to step (source: two batches of real numbers that have equal sums, squares and extrema are one batch).

    Ignores inputs that stay the same over time, inputs of one value, ranks that share samples by tensor parallelism, and runs whose
    gradients are not averaged over ranks.

    Causes: a loader without a `DistributedSampler`, with the same seed on every rank.
    Do: give the loader a `DistributedSampler`, or seed it by rank.
    """
    if not averaged(run):
        return
    groups = [set(e["ranks"]) for e in run.events if e.get("event") == "same_samples"]
    for site in sites_of(run, "input"):
        steps, ranks, stats = beside(run, site)
        varied = np.isfinite(stats[:, :, 4:6]).all(axis=(1, 2)) & (stats[:, 0, 6] < stats[:, 0, 7])
        stats, steps = stats[varied], steps[varied]
        if len(steps) < at_least or (stats[1:, 0] == stats[:-1, 0]).all():
            continue
        same = (stats == stats[:, :1]).all(axis=(0, 2))
        like_first = [rank for rank, equal in zip(ranks, same, strict=True) if equal]
        if len(like_first) > 1 and not any(set(like_first) <= group for group in groups):
            shown = ", ".join(map(str, like_first[:4])) + (", ..." if len(like_first) > 4 else "")
            yield Finding(
                rule="rank-data",
                severity="warning",
                message=f"ranks {shown} are given the same batches in all {len(steps)} recorded steps: their work adds nothing",
                first_step=int(steps[0]),
                last_step=int(steps[-1]),
                where="data",
                phase="data",
                site=site.name,
                causes=("the loader has no DistributedSampler, and the same seed on every rank",),
                advice=("give the DataLoader a DistributedSampler, and call its set_epoch", "seed the loader by rank"),
                evidence={"ranks": like_first, "steps": len(steps)},
            )
            return
