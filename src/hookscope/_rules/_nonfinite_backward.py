"""The backward turned finite gradients into NaN or Inf."""

from __future__ import annotations

from collections.abc import Iterator

from .._core._finding import Finding, Where
from .._record import Run
from ._backward_origin import BackwardOrigin, backward_origin
from ._births import Birth, births
from ._places import Places


def nonfinite_backward(run: Run) -> Iterator[Finding]:
    """The forward and the loss are finite, and a gradient is NaN or Inf.

    Fires at the last module, in the order of execution, whose output gradient is clean while an upstream output gradient or a gradient of
    its own parameters is not (source: the chain rule, which carries a NaN on to all that lies upstream). Where the gradient of the model's
    own output is already bad, the loss is named; where the break lies between two modules, the module whose own code runs there. In a step
    in which no gradient of an output was read, none is named, unless running it again has shown the operation.

    Ignores steps whose forward, loss or parameters are non-finite, which other rules name; a step that a gradient scaler skipped is
    information only, since the scaler lowers its scale by itself.

    Causes: sqrt, norm or pow at 0, a `torch.where` over a branch that is invalid, 0 * inf behind a clean-up such as nan_to_num.
    Do: make the argument valid before the operation; cleaning the result afterwards does not clean its gradient.
    """
    places = Places.of(run.sites)
    for birth in births(run):
        if birth.weights_bad or _forward_ill(birth):
            continue
        origin = backward_origin(birth, places)
        if origin is not None:
            yield _finding(birth, origin)


def _forward_ill(birth: Birth) -> bool:
    until = birth.turned_back
    micros = [micro for micro in birth.rows.micros if until is None or micro <= until]
    bad = [*(r for r in birth.rows.of("loss") if r.nonfinite), *birth.bad("output")]
    return any(r.micro in micros for r in bad) or any(birth.bad_batch(micro) for micro in micros)


def _finding(birth: Birth, origin: BackwardOrigin) -> Finding:
    skipped = birth.rows.skipped
    where: Where = "unknown" if origin.kind == "unknown" else "loss" if origin.kind in ("loss", "use-of-weight") else "module"
    aside = _clipping(birth)
    return Finding(
        rule="nonfinite-backward",
        severity="info" if skipped else "error",
        message=_message(birth, origin) + ("; the step was skipped" if skipped else aside),
        first_step=birth.step,
        last_step=birth.step,
        where=where,
        phase="backward",
        site=origin.row.site.name,
        module=origin.place.name if origin.kind not in ("loss", "unknown") else None,
        confidence=origin.confidence,
        causes=("the gradient overflowed under the loss scale, or a guard in the loop left the step out",)
        if skipped
        else (
            "sqrt, norm or pow at exactly 0: its derivative is infinite",
            "log, sqrt or division in the branch that torch.where does not select: its gradient is 0 * inf",
            "nan_to_num or a mask that cleans the value but not its gradient",
            *(("clip_grad_norm_ multiplied an infinite gradient by 1 / inf = 0, which gives NaN",) if aside else ()),
        ),
        advice=("nothing, while it stays rare: a GradScaler lowers its scale after each such step",)
        if skipped
        else (
            "make the argument valid before the operation (clamp, eps, or where around the argument as well as around the result)",
            f"run the batch of step {birth.step} again under torch.autograd.detect_anomaly() to see the line",
        ),
        evidence={**origin.row.counted, "origin": origin.kind},
    )


def _message(birth: Birth, origin: BackwardOrigin) -> str:
    row = origin.row
    found = f"the gradient of {row.site.full_path}{row.site.output_path} has {row.what}"
    seen = "the forward" if any(r.site.path for r in birth.rows.of("output")) else "what the model returned"
    clean = f"although {seen} and the loss are finite"
    if origin.kind == "loss":
        return f"{found} as it arrives from the loss, {clean}"
    if origin.kind == "use-of-weight":
        return f"{found}, {clean} and {origin.place.described} itself received a clean gradient: the loss uses this weight directly"
    if origin.kind == "own-code":
        return f"{found}, {clean}; it comes from the own code of {origin.place.described}, what was executed later is clean"
    if origin.kind == "uncalled":
        return f"{found}, {clean}; no gradient of what {origin.place.described} returned was read: its weight may be used from elsewhere"
    if origin.kind == "unknown":
        return f"{found}, {clean}; no gradient of an output was read in this step to tell where it was made"
    return f"{found}, {clean}; {origin.place.described} received a clean gradient and made this one"


def _clipping(birth: Birth) -> str:
    """How clipping by the global norm shows: an infinite norm zeroes every finite gradient, a NaN norm makes every gradient NaN."""
    grads = birth.rows.of("param_grad")
    finite = [r for r in grads if not r.nonfinite]
    flowed = any(r.stats.sumsq > 0 for r in birth.rows.of("output_grad"))
    if finite and flowed and len(finite) < len(grads) and all(r.stats.zeros == r.stats.count for r in finite):
        return f"; all {len(finite)} other parameter gradients are exactly 0, as clip_grad_norm_ leaves them when the norm is infinite"
    flow = birth.rows.of("output_grad")
    if len(grads) > 1 and not finite and flow and not any(r.nonfinite for r in flow):
        return f"; all {len(grads)} parameter gradients are non-finite, as clip_grad_norm_ leaves them when the norm is NaN"
    return ""
