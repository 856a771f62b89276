"""The size of the whole gradient exceeds a bound that the caller set."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .._core._finding import Finding
from .._record import Run
from ._series import Series, gradient_norm
from ._step import read_steps


def exploding_grad(run: Run, *, grad_norm_threshold: float | None = None) -> Iterator[Finding]:
    """The global gradient norm exceeds a threshold that you set.

    Fires, once for each stretch of consecutive steps, when the norm over all parameters' gradients (before clipping where that was
    recorded) is above `grad_norm_threshold`. Off by default, since no fixed bound fits all models (source: the bound is yours);
    `grad-runaway` finds its own.

    Ignores steps without gradient and non-finite norms, which the rules on non-finite values name.

    Causes: too high a learning rate, a bad batch, an initialisation with too large a gain.
    Do: look at the module with the largest share, clip by the global norm, lower the learning rate.
    """
    if grad_norm_threshold is None:
        return
    norm = gradient_norm(run)
    above = np.isfinite(norm.values) & (norm.values > grad_norm_threshold)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], above.astype(int), [0]))))
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield _finding(run, Series(norm.steps[begin:end], norm.values[begin:end]), grad_norm_threshold)


def _finding(run: Run, stretch: Series, threshold: float) -> Finding:
    worst = int(np.argmax(stretch.values))
    first = next(read_steps(run, [int(stretch.steps[0])]))
    largest = max(first.parameter_gradients(), key=lambda r: r.stats.sumsq)
    share = largest.stats.sumsq / max(sum(r.stats.sumsq for r in first.parameter_gradients()), 1e-300)
    return Finding(
        rule="exploding-grad",
        severity="warning",
        message=(
            f"the global gradient norm is {stretch.values[worst]:.3g} at step {stretch.steps[worst]}, above the threshold of "
            f"{threshold:g} in {len(stretch)} consecutive step(s); {share:.0%} of its square comes from {largest.site.full_path}"
        ),
        first_step=int(stretch.steps[0]),
        last_step=int(stretch.steps[-1]),
        phase="backward",
        site=largest.site.name,
        module=largest.site.full_module,
        causes=("the learning rate is too high", "a batch far from all others", "initialisation with too large a gain"),
        advice=("clip by the global norm (torch.nn.utils.clip_grad_norm_)", "lower the learning rate, or warm it up"),
        evidence={"norm": float(stretch.values[worst]), "threshold": threshold, "share": share, "steps": len(stretch)},
    )
