"""The loss is NaN or Inf although the model's outputs are finite."""

from __future__ import annotations

from collections.abc import Iterator

from .._core._finding import Finding
from .._record import Run
from ._births import Birth, births
from ._forward_origin import forward_origin
from ._places import Places
from ._step import Row


def nonfinite_loss(run: Run) -> Iterator[Finding]:
    """The loss is NaN or Inf although the batch, the parameters and every module's output are finite.

    Fires on the first such value handed to backward (source: none is needed, one value spoils every weight). A model output with -inf in
    masked places counts as finite, since it is legal in front of a softmax.

    Ignores an Inf loss in a step that a gradient scaler skipped: the scale was too large, which the scaler mends by itself.

    Causes: a mean over no element (every target ignored, no positive sample), 0 * -inf or log(softmax(x)) in the loss, a bad target.
    Do: guard the empty case, use the fused losses (cross_entropy, binary_cross_entropy_with_logits), check the targets.
    """
    places = Places.of(run.sites)
    for birth in births(run):
        if birth.weights_bad:
            continue
        for micro in birth.rows.micros:
            losses = [r for r in birth.rows.of("loss", micro) if r.nonfinite]
            if losses and not birth.spoiled(micro) and forward_origin(birth, micro, places) is None:
                yield _finding(birth, micro, losses[0])
                break


def _finding(birth: Birth, micro: int, loss: Row) -> Finding:
    outputs = [r for r in birth.rows.of("output", micro) if not r.nonfinite and r.stats.min <= r.stats.max]
    largest = max((max(abs(r.stats.min), abs(r.stats.max)) for r in outputs), default=float("nan"))
    although = f"although all {len(outputs)} finite module outputs stay within {largest:.3g}"
    although = although if outputs else "although nothing that the model returned is"
    masked = [r for r in birth.rows.of("output", micro) if r.masked]
    aside = f"; {masked[-1].site.full_module} holds -inf in {int(masked[-1].stats.inf):,} masked places" if masked else ""
    harmless = birth.rows.skipped and not loss.stats.nan
    value = "NaN" if loss.stats.nan else "-Inf" if loss.stats.max == float("-inf") else "Inf"
    return Finding(
        rule="nonfinite-loss",
        severity="info" if harmless else "error",
        message=f"the loss is {value} {although}{aside}",
        first_step=birth.step,
        last_step=birth.step,
        where="loss",
        phase="forward",
        site=loss.site.name,
        confidence=0.9 if not masked else 0.7,
        causes=(
            "0 * -inf: a probability of 0 times its logarithm"
            if masked
            else "a mean over no element: every target ignored, or no sample selected",
            "a division by zero, logarithm or square root in the code of the loss, or a non-finite target or weight",
        ),
        advice=(
            "leave the step out when nothing is left to average over",
            "use the fused loss functions, and clamp before log, sqrt and division",
            f"check the targets of step {birth.step}: they do not pass the model, so no hook sees them",
        ),
        evidence={"micro": micro, "outputs": len(outputs), "largest_output": largest},
    )
