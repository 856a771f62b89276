"""Ranks that should hold one model hold different ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .._core._finding import Finding
from .._core._site import Site
from .._record import Run
from ._ranks import averaged, beside
from ._step import sites_of

TOLERANCE = 1e-6  # of the largest value: equal bits have equal stats


def rank_divergence(run: Run, *, tolerance: float = TOLERANCE) -> Iterator[Finding]:
    """The ranks of a data-parallel training hold different values of a parameter.

    Fires where a parameter that every rank has whole differs between ranks, by more than `tolerance` of its largest value in the root of
    its mean square, its minimum or its maximum, and does so up to its last step (source: DistributedDataParallel starts from one copy and
    gives all ranks one average, so that their parameters stay equal to the bit).

    Ignores runs whose gradients are not averaged by DistributedDataParallel or `fully_shard`, parameters in parts, buffers, and steps that
    only some ranks have recorded.

    Causes: a forward through `.module`, or always under `no_sync`, so that nothing is averaged; a parameter made after the wrapping;
    weights loaded or changed on one rank; skipped steps of gradient scalers that differ.
    Do: call the wrapper, not the module in it; load and change weights on all ranks alike.
    """
    if not averaged(run):
        return
    apart = {}
    for site in sites_of(run, "param"):
        if site.part:
            continue
        steps, far = _far(run, site, tolerance)
        if len(far) and far[-1]:
            first = len(far) - int(np.argmin(far[::-1])) if not far.all() else 0
            apart[site.full_path] = int(steps[first]), site, int(steps[-1])
    if apart:
        step, site, last = min(apart.values(), key=lambda found: found[0])
        _, ranks, stats = beside(run, site, at=last)
        sizes = np.sqrt(stats[0, :, 5] / np.maximum(stats[0, :, 0], 1))
        others = f" and {len(apart) - 1} other parameter(s)" if len(apart) > 1 else ""
        low, high = int(np.argmin(sizes)), int(np.argmax(sizes))
        yield Finding(
            rule="rank-divergence",
            severity="error",
            message=f"ranks hold different values of {site.full_path}{others}: "
            f"rms {sizes[low]:.6g} on rank {ranks[low]}, {sizes[high]:.6g} on rank {ranks[high]} at step {last}",
            first_step=step,
            last_step=last,
            where="loop",
            phase="optimizer",
            site=site.name,
            module=site.full_module,
            causes=(
                "the forward runs through `.module`, or always under no_sync: gradients are not averaged",
                "weights were changed on one rank",
            ),
            advice=("call the DistributedDataParallel itself, not its .module", "load and change weights on all ranks alike"),
            evidence={"parameters": len(apart), "rms": {str(rank): float(size) for rank, size in zip(ranks, sizes, strict=True)}},
        )


def _far(run: Run, site: Site, tolerance: float) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The steps that all ranks have, and whether they lie apart there."""
    spread = run.table.spread(site)
    low, high = (np.column_stack([np.sqrt(b[:, 5] / np.maximum(b[:, 0], 1)), b[:, 6], b[:, 7]]) for b in (spread.low, spread.high))
    common = (spread.ranks == len(run.ranks)) & np.isfinite(low).all(axis=1) & np.isfinite(high).all(axis=1)
    low, high = low[common], high[common]
    largest = np.maximum(np.abs(low), np.abs(high)).max(axis=1, initial=1e-30)
    return spread.steps[common], (high - low).max(axis=1, initial=0.0) > tolerance * largest
