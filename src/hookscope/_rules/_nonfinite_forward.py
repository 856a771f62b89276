"""A module turned finite values into NaN or Inf."""

from __future__ import annotations

from collections.abc import Iterator

from .._core._finding import Finding, Severity
from .._record import Run
from ._births import Birth, births
from ._forward_origin import Origin, forward_origin
from ._places import Places


def nonfinite_forward(run: Run) -> Iterator[Finding]:
    """A module's forward turned finite inputs into NaN or Inf.

    Fires at the first non-finite output in the order of execution (source: one value is enough for Amazon SageMaker Debugger's rule
    ExplodingTensor, too; the order is what tells the origin from all that it spoils). Where the inputs of that module are bad although
    every output before it is clean, the operation lies between two modules, and the enclosing one, whose own code it is, is named. It is
    an error where the loss, a gradient or an update of the same step is non-finite, else information.

    Ignores masks (-inf beside finite values and no NaN), non-finite batches and parameters, which other rules name, and outputs whose
    non-finite values earlier steps survived.

    Causes: a division by zero, a logarithm or root out of its domain, exp or float16 overflow, a softmax over a fully masked row.
    Do: bound the argument before the operation (clamp, eps), or compute that part in float32.
    """
    places = Places.of(run.sites)
    for birth in births(run):
        if birth.weights_bad:
            continue
        until = birth.turned_back
        for micro in birth.rows.micros:
            if until is not None and micro > until:
                break
            origin = forward_origin(birth, micro, places)
            if origin is not None:
                yield _finding(birth, micro, origin)
                break


def _finding(birth: Birth, micro: int, origin: Origin) -> Finding:
    row, severity = origin.row, _severity(birth)
    if origin.between:
        text = f"the own code of {origin.place.described} made {_inputs_of(birth, origin)} before {row.site.full_module} was called"
    else:
        text = f"output{row.site.output_path} of {origin.place.described} has {row.what}{origin.fed}"
    return Finding(
        rule="nonfinite-forward",
        severity=severity,
        message=text if severity == "error" else f"{text}; nothing behind it was harmed",
        first_step=birth.step,
        last_step=birth.step,
        site=row.site.name,
        module=origin.place.name,
        confidence=0.8 if origin.between else 0.95,
        causes=_causes(row.site.dtype),
        advice=(
            "bound the argument before the operation: clamp, or an eps that the dtype can hold",
            f"run the batch of step {birth.step} again and look at each operation in {origin.place.name}",
        ),
        evidence={"micro": micro, **row.counted, "between_modules": origin.between},
    )


def _severity(birth: Birth) -> Severity:
    return "error" if birth.rows.harmed else "info"


def _inputs_of(birth: Birth, origin: Origin) -> str:
    """What the consumer was called with; its own first bad output where that was not recorded."""
    module = origin.row.site.full_module
    fed = [r for r in birth.rows.of("input", origin.row.micro) if r.site.full_module == module and r.nonfinite]
    return (fed or [origin.row])[0].what


def _causes(dtype: str) -> tuple[str, ...]:
    domain = ("a division by zero, or a logarithm, root or power outside its domain", "a softmax over a row that is masked everywhere")
    overflow = "exp or a product above the largest value of the dtype"
    return (f"{overflow} (65504 in float16)", *domain) if "float16" in dtype and "bfloat16" not in dtype else (*domain, overflow)
