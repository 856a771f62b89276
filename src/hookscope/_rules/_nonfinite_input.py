"""The batch itself holds NaN or Inf."""

from __future__ import annotations

from collections.abc import Iterator

from .._core._finding import Finding
from .._record import Run
from ._births import births


def nonfinite_input(run: Run) -> Iterator[Finding]:
    """The batch that went into the model holds NaN or Inf.

    Fires on any NaN or Inf among the floating inputs of the model itself (source: one value is enough for Amazon SageMaker Debugger's rule
    ExplodingTensor, too). In a step in which no input was read, that is what running it again has shown. It is an error where the loss, a
    gradient or an update of the same step is non-finite, else information.

    Ignores masks (-inf beside finite values and no NaN), inputs whose non-finite values earlier steps survived unharmed, steps whose
    parameters were already non-finite, and integer inputs, which cannot hold either. Targets do not pass the model and are not seen.

    Causes: a missing value read as NaN, a division or logarithm in the preprocessing, a broken file.
    Do: find the samples of that batch, then repair, filter or mask them before the model.
    """
    for birth in births(run):
        if birth.weights_bad:
            continue
        for micro in birth.rows.micros:
            if not birth.spoiled(micro):
                continue
            bad = birth.bad_batch(micro)
            harmed = birth.rows.harmed
            effect = "and the loss or gradients of the step are non-finite" if harmed else "and nothing behind it was harmed"
            given = f"(model input{bad[0].site.output_path}) has {bad[0].what}" if bad else "was not finite before the model ran"
            yield Finding(
                rule="nonfinite-input",
                severity="error" if harmed else "info",
                message=f"the batch {given} {effect}",
                first_step=birth.step,
                last_step=birth.step,
                where="data",
                phase="data",
                site=bad[0].site.name if bad else None,
                causes=(
                    "missing values stored as NaN in the data",
                    "a division by zero or a logarithm in the preprocessing",
                    "a damaged file or record",
                ),
                advice=(
                    "look at the samples of this batch and drop or repair those that are not finite",
                    "check `torch.isfinite(batch).all()` in the data loader",
                ),
                evidence={"micro": micro, **(bad[0].counted if bad else {})},
            )
