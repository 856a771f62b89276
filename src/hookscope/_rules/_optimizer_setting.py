"""A setting of the optimizer under which no training can go well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .._core._finding import Finding
from .._record import Run
from ._step import sites_of

LARGEST = 3.4e38  # of float32, in which clip_grad_norm_ adds up squares


def optimizer_setting(run: Run) -> Iterator[Finding]:
    """The optimizer cannot work as it is set: a learning rate below 0 or not finite, a weight decay that makes weights grow, a clipping
    that takes all gradients away.

    Fires on what the watch sees at a step: a learning rate that is negative (without `maximize`), NaN or Inf; a decoupled weight decay
    whose product with the learning rate exceeds 2, so that each step multiplies weights by 1 - lr * weight_decay, which is below -1
    (source: Loshchilov and Hutter 2019, where that product is the share of a weight that is taken away); a clipping that left nothing of
    gradients whose squares are beyond float32, since their norm is infinite there and 1 / inf is 0.

    Ignores settings that are merely unusual, and gradients that the loop sets to 0 on purpose.

    Causes: a schedule that runs beyond its end or divides by 0; weight decay given in percent; a loss on a huge scale.
    Do: look at the schedule's value at that step; lower the weight decay; scale the loss.
    """
    for event in run.events:
        if event.get("event") == "optimizer_setting":
            yield _finding(run, int(event.get("step") or 0), _words(event), event)
    yield from _clipped_away(run)


def _words(event: Mapping[str, Any]) -> tuple[str, str, str]:
    """What is wrong, why, what to do."""
    rate, name = event["lr"], event["optimizer"]
    if event["cause"] == "decay":
        product = 1 - event["factor"]
        shown = f"{product:.3g} ({rate:g} * {event['weight_decay']:g})"
        return (
            f"lr * weight_decay of {name} is {shown}: each step multiplies weights by {event['factor']:.3g}",
            "weight decay given in percent, or for another learning rate",
            "choose weight_decay so that lr * weight_decay stays far below 1 (0.01 to 0.1 is usual for AdamW's weight_decay)",
        )
    climbs = "" if event["cause"] == "lr" else ": each step goes up the gradient, not down"
    why = "a schedule that divides by 0" if event["cause"] == "lr" else "a schedule that runs beyond its last step"
    return f"the learning rate of {name} is {rate}{climbs}", why, "look at the value that the scheduler gives at this step"


def _clipped_away(run: Run) -> Iterator[Finding]:
    factors = [s for s in sites_of(run, "scalar") if s.path.split(".")[0] == "clip"]
    before = sites_of(run, "param_grad", label="preclip")
    if not factors or not before:
        return
    table = run.matrix(factors, "mean")
    zero = np.asarray(table.steps)[(np.asarray(table.values) == 0).any(axis=1)]
    sizes = run.matrix(before, "absmax")
    for step in zero.tolist():
        size = float(np.nanmax(np.asarray(sizes.values)[np.asarray(sizes.steps) == step], initial=0.0))
        if size**2 > LARGEST:
            text = f"clipping left nothing of the gradients: their largest is {size:.3g}, so that their norm is infinite in float32"
            yield _finding(run, step, (text, "the square of a gradient exceeds the largest float32", "scale the loss down"), {})
            return


def _finding(run: Run, step: int, words: tuple[str, str, str], event: Mapping[str, Any]) -> Finding:
    text, cause, advice = words
    return Finding(
        rule="optimizer-setting",
        severity="error",
        message=text,
        first_step=step,
        last_step=max([step, *(int(s) for s in run.steps[-1:])]),
        where="loop" if not event else "optimizer",
        phase="optimizer",
        causes=(cause,),
        advice=(advice,),
        evidence={name: event[name] for name in ("cause", "lr", "weight_decay", "factor") if name in event},
    )
