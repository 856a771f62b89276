"""The gradient grows on its way back to the first layers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .._core._finding import Finding
from .._record import Run
from ._gradient_depth import GradientDepth, gradient_depth
from ._places import Place, Places, enclosing


def exploding_grad_depth(run: Run, *, ratio: float = 1e4, steps: int = 10) -> Iterator[Finding]:
    """The gradient at the first module is many times the one at the last.

    Fires when the gradient at the first output is more than `ratio` times that at the last, in rms and in norm, in the median over at
    least `steps` steps (3 where the run went non-finite before) (source: AutoTrainer, Zhang et al. 2021, compares the same two gradients
    and takes 70; this bound is more than a hundred times as cautious). Names the smallest module that encloses the growth, or the first of
    it.

    Ignores steps without gradient or with a non-finite one, and growth in rms alone, which pooling and averaging make.

    Causes: an initialisation with too large a gain, a recurrent weight above 1, missing normalisation.
    Do: He or Glorot initialisation, orthogonal recurrent weights, normalisation, clipping by the global norm.
    """
    seen = gradient_depth(run)
    if seen is None or not np.isfinite(seen.share[0]):
        return
    ended = run.matrix(list(seen.sites), "nonfinite")
    needed = 3 if np.nansum(ended.values) > 0 else steps
    if seen.used >= needed and seen.share[0] > ratio:
        yield _finding(_where(run, seen), seen)


def _where(run: Run, seen: GradientDepth) -> Place:
    """The stretch over which the middle eight tenths of the growth happen."""
    logs = np.log([share if share > 0 else np.nan for share in seen.share])
    grown = [s for s, log in zip(seen.sites, logs, strict=True) if 0.1 * logs[0] <= log <= 0.9 * logs[0]] or list(seen.sites[:1])
    return Places.of(run.sites).at(grown[0].model, enclosing(s.module for s in grown) or seen.sites[0].module)


def _finding(place: Place, seen: GradientDepth) -> Finding:
    first, last = seen.sites[0], seen.sites[-1]
    return Finding(
        rule="exploding-grad-depth",
        severity="warning",
        message=(
            f"the gradient explodes with depth: {seen.size[0]:.3g} (rms) at {first.full_module} against {seen.size[-1]:.3g} at "
            f"{last.full_module}, the median of {seen.used} steps, mostly inside {place.described}"
        ),
        first_step=seen.first_step,
        last_step=seen.last_step,
        phase="backward",
        site=first.name,
        module=place.name,
        confidence=0.85,
        causes=("initialisation with too large a gain", "a recurrent weight whose largest singular value exceeds 1", "no normalisation"),
        advice=("initialise with He or Glorot (orthogonal for recurrent weights)", "add normalisation", "clip by the global gradient norm"),
        evidence={"rms": {s.full_module: v for s, v in zip(seen.sites[:64], seen.size[:64], strict=True)}, "ratio": seen.share[0]},
    )
