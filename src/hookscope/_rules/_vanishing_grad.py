"""The gradient dies on its way back to the first layers."""

from __future__ import annotations

from collections.abc import Iterator

from .._core._finding import Finding
from .._record import Run
from ._gradient_depth import GradientDepth, gradient_depth
from ._places import Places


def vanishing_grad(run: Run, *, ratio: float = 1e-5, steps: int = 20) -> Iterator[Finding]:
    """The gradient that reaches the first module is a vanishing share of the one at the last.

    Fires when the gradient at the first output is less than `ratio` of that at the last, in rms and in norm, in the median over at least
    `steps` steps with a gradient at both ends (source: AutoTrainer, Zhang et al. 2021, compares the same two gradients and takes 1e-3;
    this bound is a hundred times stricter). Names the module nearest to the input.

    Ignores the absolute size (a converged loss or a small loss scale shrinks all gradients alike), steps without gradient, and gradients
    that are exactly 0, which have other causes than depth.

    Causes: a deep chain of saturating activations, too small an initialisation, no residual connections.
    Do: residual connections, normalisation, He or Glorot initialisation, a non-saturating activation.
    """
    seen = gradient_depth(run)
    if seen is not None and seen.used >= steps and 0 < seen.share[0] < ratio:
        yield _finding(run, seen)


def _finding(run: Run, seen: GradientDepth) -> Finding:
    first, last = seen.sites[0], seen.sites[-1]
    place = Places.of(run.sites).at(first.model, first.module)
    return Finding(
        rule="vanishing-grad",
        severity="warning",
        message=(
            f"the gradient vanishes with depth: {seen.size[0]:.3g} (rms) at {place.described} against {seen.size[-1]:.3g} at "
            f"{last.full_module}, the median of {seen.used} steps"
        ),
        first_step=seen.first_step,
        last_step=seen.last_step,
        phase="backward",
        site=first.name,
        module=place.name,
        confidence=0.9,
        causes=("a deep chain of saturating activations", "initialisation with too small a standard deviation", "no residual connections"),
        advice=("add residual connections or normalisation", "initialise with the gain of the activation (He for ReLU, 5/3 for tanh)"),
        evidence={"rms": {s.full_module: v for s, v in zip(seen.sites[:64], seen.size[:64], strict=True)}, "ratio": seen.share[0]},
    )
