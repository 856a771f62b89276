"""`compare`: two recorded runs, the step and site at which they part, and what of it is more than noise. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .._core._errors import UsageError
from .._core._select import select_sites
from .._core._site import Site
from .._record import Run
from .._record._run import default_quantity
from ._aligned import CLOCKS, Aligned, Cube, align, series
from ._noise import Values, score
from ._parting import SIGNIFICANT, RunComparison, SiteChange


def compare(a: Run | str | os.PathLike[str], b: Run | str | os.PathLike[str], *, select: Any = "**") -> RunComparison:
    """Compare two recorded runs.

    Sites are matched by name, steps by number. Equality is told first: of every recorded stat, in every bit. Then how far each site is
    apart: rms (mean of losses and scalars), the median of the difference over the common steps from the first that differs, over the
    noise of a single value: the variation from step to step within the runs (robust), what the rms of so many elements varies by from
    draw to draw, and at least 1 % of the value. Two seeds of one training differ everywhere and mean little; above 3 is more than noise.
    `select` limits the sites. Wall-clock times are left out.

    Raises `UsageError` where the runs have no step or no site in common.

    >>> import tempfile, numpy as np, hookscope as hs, hookscope._record as record
    >>> from hookscope._core._frame import Frame
    >>> paths = []
    >>> for loss in (0.5, 0.25):
    ...     writer = record.RunWriter(tempfile.mkdtemp(), record.Meta())
    ...     writer.sites([hs.Site(0, "loss", "loss")])
    ...     zero = np.zeros(1, np.int32)
    ...     writer.frame(Frame(0, zero, zero, zero, zero, np.array([[1.0, 0, 0, 0, loss, loss**2, loss, loss]])))
    ...     writer.close("finished")
    ...     paths.append(writer.path)
    >>> found = hs.compare(*paths)
    >>> bool(found), found.first_step, found.first_site
    (False, 0, 'loss')
    >>> bool(hs.compare(paths[0], paths[0]))
    True
    """
    runs = [run if isinstance(run, Run) else Run(run) for run in (a, b)]
    if not len(np.intersect1d(runs[0].steps, runs[1].steps)):
        raise UsageError(f"the runs have no step in common: {runs[0]!r}, {runs[1]!r}")
    sites = tuple([site for site in select_sites(tuple(run.sites), select) if site.name not in CLOCKS] for run in runs)
    aligned = align(runs[0], runs[1], (sites[0], sites[1]))
    if not aligned.pairs:
        raise UsageError(f"the runs have no site in common: {runs[0]!r} has {sites[0][0].name!r}, {runs[1]!r} has {sites[1][0].name!r}")
    changes = [change for block in aligned.blocks() for change in _changes(aligned, *block)]
    step = min((change.first_step for change in changes if change.first_step is not None), default=None)
    first = None if step is None else _first(aligned.a, step, {c.site for c in changes if c.first_step == step})
    changes.sort(key=lambda change: (change.first_step is None, -change.score, -1 if change.site == first else 0))
    names = [{site.name for site in side} for side in sites]
    result = RunComparison(
        _name(runs[0]), _name(runs[1]), "", len(aligned.steps), step, first, tuple(changes), tuple(_settings(*runs)),
        tuple(s.name for s in sites[0] if s.name not in names[1]), tuple(s.name for s in sites[1] if s.name not in names[0]),
        *(len(np.setdiff1d(run.steps, aligned.steps)) for run in runs),
    )  # fmt: skip
    return replace(result, verdict=_verdict(result) + _longer(result, *runs))


_ONE_SIDE = "on one side only"


def _name(run: Run) -> str:
    return str(run.path or "in memory")


def _changes(aligned: Aligned, pairs: Sequence[tuple[Site, Site]], a: Cube, b: Cube) -> Iterator[SiteChange]:
    differs = ((a != b) & ~(np.isnan(a) & np.isnan(b))).any(-1)
    for column, (left, right) in enumerate(pairs):
        quantity = default_quantity(left)
        mine, theirs = series(a, column, quantity), series(b, column, quantity)
        where = np.flatnonzero(differs[:, column])
        first = int(aligned.steps[where[0]]) if len(where) else None
        counted = len(where) and quantity == "rms"
        elements = float(np.nanmin([a[:, column, 0], b[:, column, 0]])) if counted else 0.0
        apart = 0.0 if first is None else score(mine[where[0] :], theirs[where[0] :], elements=elements)
        note = ", ".join(filter(None, (_note(left, right), _broken(mine, theirs))))
        yield SiteChange(left.name, quantity, first, _median(mine), _median(theirs), apart, note)


def _median(values: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    fine = values[np.isfinite(values)]
    return float(np.median(fine)) if len(fine) else float("nan")


def _broken(a: Values, b: Values) -> str:
    """In how many steps one side alone is not finite."""
    only = [int((~np.isfinite(one) & np.isfinite(other)).sum()) for one, other in ((a, b), (b, a))]
    said = " and ".join(f"{n:,} steps of {side}" for n, side in zip(only, "ab", strict=True) if n)
    return f"NaN or Inf in {said} {_ONE_SIDE}" if said else ""


def _note(a: Site, b: Site) -> str:
    """What the table of sites says of both that differs."""
    facts = (("class", a.module_class, b.module_class), ("shape", a.shape, b.shape), ("dtype", a.dtype, b.dtype))
    return ", ".join(f"{name} {left} in a, {right} in b" for name, left, right in facts if left != right)


# A parameter's value is that before the step's update; scalars, such as lr, are what the update is made with.
_ORDER = ("param", "input", "output", "loss", "output_grad", "param_grad", "scalar", "update")


def _first(run: Run, step: int, names: set[str]) -> str:
    """The one of these sites that comes first in the step: weights before they are used, the update last; within a kind as it ran."""
    sites = {site.id: site for site in run.sites if site.name in names}
    order = {i: place for place, i in reversed(list(enumerate(run.table.overview(step, step).site.tolist())))}
    return min(sites.values(), key=lambda site: (_ORDER.index(site.kind), order.get(site.id, len(order)))).name


def _settings(a: Run, b: Run) -> Iterator[tuple[str, Any, Any]]:
    """Entries of run.json that say how the run was made."""
    for name in ("selections", "every", "world_size", "torch", "python", "hookscope", "host"):
        left, right = getattr(a.meta, name), getattr(b.meta, name)
        if left != right:
            yield name, left, right
    for name in sorted({*a.meta.settings, *b.meta.settings}):
        left, right = a.meta.settings.get(name), b.meta.settings.get(name)
        if left != right:
            yield f"settings.{name}", left, right


def _longer(found: RunComparison, a: Run, b: Run) -> str:
    """What one run has beyond the other, or between: steps."""
    said = [f"{n:,} steps only in {side}" for n, side in ((found.steps_only_a, "a"), (found.steps_only_b, "b")) if n]
    ends = int(a.steps[-1]), int(b.steps[-1])
    if ends[0] != ends[1]:
        said.append(f"a ends at step {ends[0]:,} and b at step {ends[1]:,}")
    return f"; {', '.join(said)}" if said else ""


def _verdict(found: RunComparison) -> str:
    steps = f"{found.steps:,} common steps"
    if found.first_step is None:
        alone = f"; {len(found.only_a)} sites only in a, {len(found.only_b)} only in b" if found.only_a or found.only_b else ""
        return f"equal to the last bit in {steps} at {len(found.sites):,} sites{alone}"
    changed = [change for change in found.sites if change.first_step is not None]
    start = f"equal to the last bit until step {found.first_step:,}" if found.first_step else "from the first step on"
    said = [f"the runs part at step {found.first_step:,} at `{found.first_site}`{_told(found, changed)}, {start}"]
    said.append(f"{len(changed)} of {len(found.sites):,} sites differ over {steps}, {_above(found)}")
    broken = [change for change in changed if _ONE_SIDE in change.note]
    if broken:
        more = f" and {len(broken) - 1} more sites" if len(broken) > 1 else ""
        said.append(f"{broken[0].note} at `{broken[0].site}`{more}")
    unlike = [change for change in found.sites if change.note and change not in broken]
    built = sorted(unlike, key=lambda change: "class" not in change.note)
    said += [f"{len(built)} sites are not built alike, such as `{built[0].site}`: {built[0].note}"] if built else []
    return "; ".join(said)


def _told(found: RunComparison, changed: Sequence[SiteChange]) -> str:
    """A scalar that the loop sets, and that differs in the very step."""
    here = {change.site for change in changed if change.first_step == found.first_step} - {found.first_site}
    told = [site for site in ("lr", "loss_scale", "clip_value") if site in here]
    return f" ({' and '.join(told)} differs in that step)" if told else ""


def _above(found: RunComparison) -> str:
    above = found.significant
    if not above:
        return "none by more than noise"
    return f"{len(above)} by more than {SIGNIFICANT:g} times their noise, most `{above[0].site}`"
