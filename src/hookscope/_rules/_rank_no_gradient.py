"""A parameter to which some ranks never bring a gradient."""

from __future__ import annotations

from collections.abc import Iterator

from .._core._finding import Finding
from .._record import Run
from ._ranks import averaged
from ._step import sites_of

AT_LEAST = 10  # steps


def rank_no_gradient(run: Run, *, at_least: int = AT_LEAST) -> Iterator[Finding]:
    """A parameter gets gradients on some ranks, and on another never.

    Fires, as information, where the gradient that a rank's own backward brings (`param_grad/local`) is recorded on one rank and in none of
    at least `at_least` steps on another (source: DistributedDataParallel divides by the number of ranks, so that such a parameter gets a
    share of its gradient only).

    Ignores parameters without a gradient on every rank, and runs under something else than DistributedDataParallel.

    Causes: a branch of the model that depends on the rank or on its samples.
    Do: let every rank take every branch, or accept that these parameters learn more slowly.
    """
    if not averaged(run):
        return
    found = {}
    own = sites_of(run, "param_grad", label="local")
    for site, rows in zip(own, run.table.presence(own).T, strict=True):
        never = [rank for rank, brought in zip(run.ranks, rows.tolist(), strict=True) if not brought]
        if never and rows.max() >= at_least and len(steps := run[site].steps) >= at_least:
            found[site.full_path] = never, steps, site
    if found:
        path, (never, steps, site) = next(iter(found.items()))
        others = f" and {len(found) - 1} other parameter(s)" if len(found) > 1 else ""
        yield Finding(
            rule="rank-no-gradient",
            severity="info",
            message=f"{path}{others} never get a gradient on rank {never[0]}, while other ranks bring one",
            first_step=int(steps[0]),
            last_step=int(steps[-1]),
            phase="backward",
            site=site.name,
            module=site.full_module,
            rank=never[0],
            causes=("a branch of the model that depends on the rank or on its samples",),
            advice=("let every rank take every branch",),
            evidence={"ranks": never, "parameters": len(found)},
        )
