"""Ranks that should hold one model hold different ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .._core._finding import Finding
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
        steps, ranks, stats = beside(run, site)
        shown = np.stack([np.sqrt(stats[:, :, 5] / np.maximum(stats[:, :, 0], 1)), stats[:, :, 6], stats[:, :, 7]], axis=-1)
        common = np.isfinite(shown).all(axis=(1, 2))
        spread = np.ptp(shown[common], axis=1).max(axis=-1, initial=0.0)
        far = spread > tolerance * np.abs(shown[common]).max(axis=(1, 2), initial=1e-30)
        if len(far) and far[-1]:
            first = len(far) - int(np.argmin(far[::-1])) if not far.all() else 0
            apart[site.full_path] = (int(steps[common][first]), site, ranks, shown[common][-1, :, 0], int(steps[common][-1]))
    if apart:
        step, site, ranks, sizes, last = min(apart.values(), key=lambda found: found[0])
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
