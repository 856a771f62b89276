"""What ranks say one beside the other: the stats of a site on each, and on which of them a finding began."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .._core._finding import Finding
from .._core._site import Site
from .._core._stats import WIDTH
from .._record import Run

Beside = NDArray[np.float64]  # [steps, ranks, stats], NaN where a rank has no row


def averaged(run: Run) -> bool:
    """Whether gradients are averaged over ranks, so that these train one model on samples of their own."""
    return len(run.ranks) > 1 and any(event.get("event") == "averaged" for event in run.events)


def beside(run: Run, site: Site, *, at: int | None = None) -> tuple[NDArray[np.int64], tuple[int, ...], Beside]:
    """Steps, ranks, and the stats of one site in its first micro-batch and call on each; at all steps, or one."""
    rows = run.table.rows_of(site, at, at)
    rows = rows.take(np.flatnonzero((rows.micro <= 0) & (rows.call == 0)))
    steps, ranks = np.unique(rows.step), run.ranks
    stats = np.full((len(steps), len(ranks), WIDTH), np.nan)
    stats[np.searchsorted(steps, rows.step), np.searchsorted(ranks, rows.rank)] = rows.stats
    return steps, ranks, stats


def with_ranks(findings: Iterable[Finding], run: Run) -> Iterator[Finding]:
    """The findings, each with the rank on which it began where not all ranks had it."""
    several = len(run.ranks) > 1
    for finding in findings:
        bad = _bad_ranks(finding, run) if several and finding.rank is None and finding.rule.startswith("nonfinite") else ()
        if bad:
            words = f"rank {bad[0]}" if len(bad) == 1 else f"ranks {', '.join(map(str, bad[:4]))}{', ...' if len(bad) > 4 else ''}"
            evidence = {**finding.evidence, "ranks": list(bad)}
            yield replace(finding, rank=bad[0], message=f"{finding.message}; only on {words} of {len(run.ranks)}", evidence=evidence)
        else:
            yield finding


def _bad_ranks(finding: Finding, run: Run) -> tuple[int, ...]:
    """The ranks on which the finding's site is not finite at its first step; none where all ranks are alike."""
    site = next((s for s in run.sites if s.name == finding.site), None)
    if site is None:
        return ()
    rows = run.table.rows_of(site, finding.first_step, finding.first_step)
    bad = np.unique(rows.rank[(rows.stats[:, 1:3] > 0).any(axis=1)])
    return tuple(int(rank) for rank in bad) if 0 < len(bad) < len(run.ranks) else ()
