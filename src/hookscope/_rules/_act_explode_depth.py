"""Activations grow from layer to layer until they are far too large."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .._core._finding import Finding
from .._record import Run
from ._depth import Stage, cumulative, first_step, responsible, span, stages
from ._step import Row


def act_explode_depth(
    run: Run, *, growth: float = 1e2, peak: float = 1e2, growing_stages: int = 4, result: float = 10.0
) -> Iterator[Finding]:
    """Activations grow with depth, over several modules, before anything was learned.

    Fires in the first step when the rms of an output exceeds `peak` and is `growth` times that of the first output (or of the batch, if
    larger), the rise is spread over at least `growing_stages` modules, and the model's result is still above `result` (source: rule R07;
    a variance ratio above 10, a published default, fires on 6 of 28 sound programs, these bounds on none).

    Ignores a large batch that is merely handed on, one module that scales on purpose, and growth that a later normalisation takes back.

    Causes: an initialisation with too large a gain, missing or frozen normalisation, sums over residual branches.
    Do: He initialisation in front of ReLU (variance 2 / fan_in), Glorot elsewhere; a normalisation in each block; scaled branches.
    """
    step = first_step(run)
    chain = stages(step) if step else []
    if step is None or len(chain) < growing_stages + 1:
        return
    base = max([chain[0].rms, *_batch(step.of("input"))])
    reached = cumulative(np.array([max(base, s.rms) for s in chain]), growing=True)
    rising = int((np.diff(reached) > 0.1 * reached[:-1]).sum())
    if base <= 0 or reached[-1] < peak or reached[-1] < growth * base or rising < growing_stages or chain[-1].rms < result:
        return
    start, stop = span(reached)
    yield _finding(run, chain, reached.tolist(), (start, stop), step.step)


def _batch(inputs: list[Row]) -> list[float]:
    return [float(np.sqrt(r.stats.sumsq / r.stats.count)) for r in inputs if r.site.path == "" and r.stats.count and not r.nonfinite]


def _finding(run: Run, chain: list[Stage], reached: list[float], stretch: tuple[int, int], step: int) -> Finding:
    start, stop = stretch
    place = responsible(run, chain, start, stop)
    factor = reached[-1] / reached[0]
    return Finding(
        rule="act-explode-depth",
        severity="warning",
        message=(
            f"activations grow with depth by a factor of {factor:.3g}: rms {reached[0]:.3g} at {chain[0].site.full_module}, "
            f"{reached[-1]:.3g} at {chain[int(np.argmax([s.rms for s in chain]))].site.full_module}, mostly inside {place.described}"
        ),
        first_step=step,
        last_step=step,
        site=chain[start].site.name,
        module=place.name,
        confidence=0.9,
        causes=(
            "initialisation with too large a gain",
            "normalisation that is missing, or frozen without the statistics of a trained model",
            "residual branches added up without scaling",
        ),
        advice=(
            "initialise with variance 2 / fan_in in front of ReLU, 2 / (fan_in + fan_out) elsewhere",
            "put a normalisation into each block, or scale each branch by 1 / sqrt(number of blocks)",
        ),
        evidence={"rms": {s.site.full_module: s.rms for s in chain[:64]}, "growth": factor},
    )
