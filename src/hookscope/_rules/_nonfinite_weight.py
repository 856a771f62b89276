"""A parameter became NaN or Inf, or was so from the start."""

from __future__ import annotations

from collections.abc import Iterator

from .._core._finding import Finding
from .._record import Run
from ._births import Birth, births
from ._step import Row, StepRows, read_steps
from ._weight_blame import about_to_be, between, blamed, others


def nonfinite_weight(run: Run) -> Iterator[Finding]:
    """A parameter is NaN or Inf before the forward used it, or became so by an update from clean gradients.

    Fires on any non-finite value of a parameter (source: none is needed, it spoils every later forward). In the first recorded step it was
    never initialised or was loaded broken; later the optimizer made it from finite gradients, or the loop did: it changed gradients between
    backward and step, or the weight itself between two steps. Which of these it was, and the setting that is to blame (`eps` that is 0 in
    float16, a learning rate that is not finite), is told where the watch could see it. Where the gradients of the step before were
    already non-finite the finding says so, and the diagnosis shows it as a consequence. Where the steps just before were not recorded,
    the cause cannot be told, and it says that.

    Ignores everything after the first step of a non-finite stretch, and updates in steps that a gradient scaler skipped.

    Causes: torch.empty without initialisation, a broken checkpoint, an eps that is 0 in float16, an infinite learning rate.
    Do: initialise the parameter; check the checkpoint; raise eps or keep the optimizer's state in float32.
    """
    first = min((int(step) for step in run.steps), default=0)
    known: set[str] = set()
    for birth in births(run):
        bad = [r for r in birth.rows.of("param") if r.nonfinite and r.site.name not in known]
        known |= {r.site.name for r in bad}
        if bad:
            yield from _held(run, birth, bad, birth.step == first)
        elif not birth.weights_bad and not birth.rows.skipped:
            updates = [r for r in birth.rows.of("update") if r.nonfinite]
            if any(r.nonfinite for r in birth.rows.parameter_gradients()):
                continue
            if updates:
                known |= {r.site.name.replace(":update", ":param") for r in updates}
                yield blamed(run, birth.rows, updates[0], len(updates))
            elif spoilt := [r for r in birth.rows.of("param_grad") if r.nonfinite]:
                yield about_to_be(birth.rows, spoilt[0], len(spoilt))


def _held(run: Run, birth: Birth, bad: list[Row], at_start: bool) -> Iterator[Finding]:
    if at_start:
        yield _initial(birth.step, bad[0], len(bad))
        return
    before = max((int(step) for step in run.steps if step < birth.step), default=birth.step)
    if birth.step - before > 1:
        yield _unseen(before, birth.step, bad[0], len(bad))
        return
    previous = next(read_steps(run, [before]))
    if _spoiled(previous):
        yield _consequence(before, birth.step, bad[0], len(bad))
    else:
        yield between(run, previous, birth.step, bad[0], len(bad)) or blamed(run, previous, bad[0], len(bad))


def _spoiled(previous: StepRows) -> bool:
    return any(r.nonfinite for kind in ("output_grad", "param_grad", "loss") for r in previous.rows if r.site.kind == kind)


def _initial(step: int, row: Row, count: int) -> Finding:
    return Finding(
        rule="nonfinite-weight",
        severity="error",
        message=f"parameter {row.site.full_path} has {row.what} before the first forward{others(count)}: uninitialised or loaded broken",
        first_step=step,
        last_step=step,
        phase="init",
        site=row.site.name,
        module=row.site.full_module,
        causes=("a parameter made by torch.empty and never initialised", "a checkpoint that holds non-finite values"),
        advice=(f"initialise {row.site.full_path} (torch.nn.init)", "check the checkpoint with torch.isfinite before loading it"),
        evidence={**row.counted, "parameters": count},
    )


def _unseen(before: int, step: int, row: Row, count: int) -> Finding:
    return Finding(
        rule="nonfinite-weight",
        severity="error",
        message=f"parameter {row.site.full_path} has {row.what}{others(count)}; the steps after {before}, where it was finite, "
        f"were not recorded",
        first_step=step,
        last_step=step,
        where="optimizer",
        phase="optimizer",
        site=row.site.name,
        module=row.site.full_module,
        confidence=0.5,
        causes=("a step was taken with non-finite gradients", "the optimizer divided 0 by 0, or overflowed the dtype"),
        advice=("record every step (every=1): the origin lies in a step that was left out",),
        evidence={**row.counted, "parameters": count, "last_finite": before},
    )


def _consequence(before: int, step: int, row: Row, count: int) -> Finding:
    return Finding(
        rule="nonfinite-weight",
        severity="error",
        message=f"parameter {row.site.full_path} has {row.what}{others(count)}, from the non-finite gradients of step {before}",
        first_step=step,
        last_step=step,
        where="optimizer",
        phase="optimizer",
        site=row.site.name,
        module=row.site.full_module,
        causes=("a step was taken with non-finite gradients",),
        advice=("go back to a checkpoint from before this step", "leave a step out when its gradient norm is not finite"),
        evidence={**row.counted, "parameters": count, "follows": before},
    )
