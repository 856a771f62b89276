"""How the gradient's size changes from the model's result back to its first module, over many steps."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from .._core._site import Site
from .._record import Run
from ._depth import first_step, outputs_in_order


@dataclass(frozen=True, slots=True)
class GradientDepth:
    """For each module in the order of execution: its gradient as a share of the last module's, the median over the steps used."""

    sites: tuple[Site, ...]
    share: tuple[float, ...]
    size: tuple[float, ...]
    first_step: int
    last_step: int
    used: int


def gradient_depth(run: Run, most_steps: int = 200) -> GradientDepth | None:
    """Read from the first `most_steps` steps in which both the first and the last module received a finite, non-zero gradient.

    A share is the one of the rms or of the norm that lies nearer to 1: averaging over many positions shrinks the rms of a gradient
    but not its norm, and neither is a fault.
    """
    step = first_step(run)
    order = dict.fromkeys(r.site for r in outputs_in_order(step)) if step else {}
    grads = {(s.model, s.path, s.output_path): s for s in run.sites if s.kind == "output_grad" and not s.label}
    chain = [grads[key] for s in order if (key := (s.model, s.path, s.output_path)) in grads and s.module]
    if len(chain) < 3:
        return None
    rms, norm = (np.asarray(run.matrix(chain, quantity).values)[:most_steps] for quantity in ("rms", "l2"))
    steps = np.asarray(run.matrix(chain, "nonfinite").steps)[:most_steps]
    clean = (np.nan_to_num(np.asarray(run.matrix(chain, "nonfinite").values)[:most_steps]) == 0).all(axis=1)
    use = clean & (np.nan_to_num(rms[:, 0]) > 0) & (np.nan_to_num(rms[:, -1]) > 0)
    if not use.any():
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a module that never ran in these steps: its median is NaN, which is meant
        shares = [np.nanmedian(table[use] / table[use][:, -1:], axis=0) for table in (rms, norm)]
        size = np.nanmedian(rms[use], axis=0)
    nearer = np.where(np.abs(np.log(shares[0] + 1e-300)) < np.abs(np.log(shares[1] + 1e-300)), *shares)
    used = steps[use]
    return GradientDepth(tuple(chain), tuple(nearer.tolist()), tuple(size.tolist()), int(used[0]), int(used[-1]), len(used))
