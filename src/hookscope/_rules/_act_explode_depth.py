"""Activations grow from layer to layer until they are far too large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .._core._finding import Finding
from .._record import Run
from ._depth import Stage, first_step, responsible, span, stages
from ._step import Row

RECURRENT = frozenset({"RNN", "LSTM", "GRU"})  # one module, as many layers as there are time steps


def act_explode_depth(
    run: Run, *, growth: float = 1e2, peak: float = 1e2, growing_stages: int = 4, result: float = 10.0
) -> Iterator[Finding]:
    """Activations grow with depth, over several modules, before anything was learned.

    Fires in the first step when the rms of an output exceeds `peak` and is `growth` times that of the first output (or of the batch, if
    larger), the rise is spread over at least `growing_stages` modules or calls, or happens in a recurrent module, and the model's result
    is still above `result` (source: bounds of our own; what sound initialisations keep is in Glorot and Bengio 2010, He et al. 2015).

    Ignores a large batch that is merely handed on, one module that scales on purpose, and growth that a later normalisation takes back.

    Causes: an initialisation with too large a gain, missing or frozen normalisation, sums over residual branches, recurrent weights > 1.
    Do: He initialisation in front of ReLU (variance 2 / fan_in), Glorot elsewhere; a normalisation in each block; scaled branches.
    """
    step = first_step(run)
    chain = stages(step) if step else []
    if step is None or not chain or chain[-1].rms < result:
        return
    batch = _size(step.of("input"))
    risen = _in_time(chain, batch, growth) or _in_depth(chain, batch, growing_stages)
    if risen is not None and risen.end >= max(peak, growth * risen.begin):
        yield _finding(run, chain, risen, step.step)


@dataclass(frozen=True, slots=True)
class Rise:
    """From `begin` to `end` (rms), between these positions in the chain."""

    begin: float
    end: float
    first: int
    last: int


def _size(inputs: Sequence[Row]) -> float:
    """rms of the batch; 0 where it is not floating."""
    batch = [r.stats for r in inputs if r.site.path == "" and r.stats.count and not r.nonfinite]
    return max((float(np.sqrt(s.sumsq / s.count)) for s in batch), default=0.0)


def _in_time(chain: list[Stage], batch: float, growth: float) -> Rise | None:
    """A recurrent module whose output is far larger than anything before it."""
    before = batch
    for i, stage in enumerate(chain):
        if stage.site.module_class in RECURRENT and 0 < before * growth < stage.rms:
            return Rise(before, stage.rms, i, i)
        before = max(before, stage.rms)
    return None


def _in_depth(chain: list[Stage], batch: float, growing_stages: int) -> Rise | None:
    reached = np.maximum.accumulate([max(batch, s.rms) for s in chain])
    if len(chain) < 2 or reached[0] <= 0 or (np.diff(reached) > 0.1 * reached[:-1]).sum() < growing_stages:
        return None
    return Rise(float(reached[0]), float(reached[-1]), *span(reached))


def _finding(run: Run, chain: list[Stage], risen: Rise, step: int) -> Finding:
    place = responsible(run, chain, risen.first, risen.last)
    factor = risen.end / risen.begin
    return Finding(
        rule="act-explode-depth",
        severity="warning",
        message=(
            f"activations grow with depth by a factor of {factor:.3g}, from rms {risen.begin:.3g} to {risen.end:.3g}, "
            f"mostly inside {place.described}"
        ),
        first_step=step,
        last_step=step,
        site=chain[risen.first].site.name,
        module=place.name,
        confidence=0.9,
        causes=(
            "initialisation with too large a gain",
            "normalisation that is missing, or frozen without the statistics of a trained model",
            "residual branches added up without scaling, or a recurrent weight whose largest singular value exceeds 1",
        ),
        advice=(
            "initialise with variance 2 / fan_in in front of ReLU, 2 / (fan_in + fan_out) elsewhere, orthogonally for recurrent weights",
            "put a normalisation into each block, or scale each branch by 1 / sqrt(number of blocks)",
        ),
        evidence={"rms": {s.site.full_module: s.rms for s in chain[:64]}, "growth": factor},
    )
