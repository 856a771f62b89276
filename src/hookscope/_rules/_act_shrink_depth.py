"""Activations shrink from layer to layer until nothing of the batch is left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .._core._finding import Finding
from .._record import Run
from ._depth import Stage, first_step, responsible, span, stages


def act_shrink_depth(run: Run, *, vanished: float = 1e-6, ratio: float = 1e-4, shrinking_stages: int = 3) -> Iterator[Finding]:
    """Activations shrink with depth, over several modules, until they carry next to nothing.

    Fires in the first step when the rms of the hidden outputs falls below `vanished`, or below `ratio` times that of the first, over at
    least `shrinking_stages` modules, and stays there up to the last layer (source: bounds of our own; what sound initialisations keep is
    in Glorot and Bengio 2010, He et al. 2015).

    Ignores outputs that are exactly 0 (a zero-initialised residual or adapter branch is sound), a dip that a skip connection or a
    normalisation makes good again, and the last layer, whose bias may hide the loss of signal.

    Causes: an initialisation with too small a standard deviation, a chain of saturating activations without residual connections.
    Do: Glorot initialisation with the gain of the activation; normalisation or residual connections.
    """
    step = first_step(run)
    chain = [s for s in stages(step) if s.rms > 0] if step else []
    hidden = _hidden(chain)
    if step is None or len(hidden) < shrinking_stages + 1:
        return
    reached = np.minimum.accumulate([s.rms for s in hidden])
    falling = int((np.diff(reached) < -0.5 * reached[:-1]).sum())
    gone = reached[-1] < vanished or reached[-1] < ratio * reached[0]
    if not gone or falling < shrinking_stages or hidden[-1].rms > 10 * reached[-1]:
        return
    start, stop = span(reached)
    yield _finding(run, hidden, (start, stop), step.step)


def _hidden(chain: list[Stage]) -> list[Stage]:
    """All but the model's result and the last layer, which makes it."""
    inner = [s for s in chain if s.site.module]
    return inner[:-1]


def _finding(run: Run, chain: list[Stage], stretch: tuple[int, int], step: int) -> Finding:
    start, stop = stretch
    place = responsible(run, chain, start, stop)
    first, last = chain[0], min(chain, key=lambda s: s.rms)
    return Finding(
        rule="act-shrink-depth",
        severity="warning",
        message=(
            f"activations shrink with depth from rms {first.rms:.3g} at {first.site.full_module} to {last.rms:.3g} at "
            f"{last.site.full_module}, mostly inside {place.described}"
        ),
        first_step=step,
        last_step=step,
        site=chain[start].site.name,
        module=place.name,
        confidence=0.9,
        causes=("initialisation with too small a standard deviation", "a deep chain of saturating activations"),
        advice=(
            "initialise with torch.nn.init.xavier_normal_ and the gain of the activation (5/3 for tanh)",
            "add residual connections or normalisation",
        ),
        evidence={"rms": {s.site.full_module: s.rms for s in chain[:64]}},
    )
