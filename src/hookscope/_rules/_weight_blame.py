"""Clean gradients and a bad weight: whether the optimizer, the loop before the step or the loop after it made it so, and by what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .._core._finding import Finding, Where
from .._record import Run
from ._step import Row, StepRows


def others(count: int) -> str:
    """` (3 other parameters too)`."""
    return f" ({count - 1} other parameters too)" if count > 1 else ""


@dataclass(frozen=True, slots=True)
class _Blame:
    """What made it, in words; what to do."""

    text: str
    causes: tuple[str, ...]
    advice: tuple[str, ...]
    where: Where = "optimizer"
    confidence: float = 0.95


_UNKNOWN = _Blame(
    "",
    (
        "the optimizer's eps is 0 in this dtype (1e-8 in float16), so it divides 0 by 0",
        "the learning rate is non-finite, or the update overflows the dtype",
        "code beside the optimizer writes to the parameter",
    ),
    ("keep parameters and optimizer state in float32, or raise eps (1e-4 in float16)", "check the learning rate of this step"),
    confidence=0.8,
)
_CHANGED = _Blame(
    "; it was finite when the backward had ended: the loop made it bad before the step",
    ("clipping by a norm that is 0 or not finite: 0 / 0, or inf * 0", "own code that scales gradients, or unscaling by a scale of 0"),
    ("look at what happens to gradients between backward and step; torch.nn.utils.clip_grad_norm_(..., error_if_nonfinite=True) raises",),
    where="loop",
)


def _eps(event: Mapping[str, Any]) -> _Blame:
    return _Blame(
        f": eps={event['eps']:g} of {event['optimizer']} is 0 in {event['dtype']}, so it divides 0 by 0",
        (f"eps={event['eps']:g} is below the smallest {event['dtype']} above 0, and the second moment of some element is 0",),
        ("keep parameters and optimizer state in float32 (autocast casts what needs casting)", "raise eps: 1e-4 in float16"),
    )


def _rate(event: Mapping[str, Any]) -> _Blame:
    return _Blame(
        f": the learning rate of {event['optimizer']} was {event['lr']}",
        (f"a learning rate of {event['lr']}, most often from a schedule that divides by 0",),
        ("look at the scheduler's value at this step",),
    )


def _state(event: Mapping[str, Any]) -> _Blame:
    return _Blame(
        f": {event['state']}, which {event['optimizer']} keeps in {event['dtype']}, is not finite",
        (f"the square of a gradient exceeds the largest {event['dtype']}", "the optimizer's state was loaded broken"),
        ("keep the optimizer's state in float32", "clip gradients, or lower the scale of the loss"),
    )


def _overflow(event: Mapping[str, Any]) -> _Blame:
    return _Blame(
        f": the update of {event['optimizer']} exceeds the largest {event['dtype']}",
        ("the learning rate times the gradient is beyond the range of the dtype",),
        ("clip gradients", f"lower the learning rate ({event['lr']:g})" if event.get("lr") is not None else "lower the learning rate"),
    )


_OF: dict[str, Callable[[Mapping[str, Any]], _Blame]] = {"eps": _eps, "lr": _rate, "state": _state, "overflow": _overflow}


def blamed(run: Run, rows: StepRows, row: Row, count: int) -> Finding:
    """The finding on an update that turned out bad in the step of `rows`."""
    changed = any(r.nonfinite for r in rows.of("param_grad"))
    event = next((e for e in run.events if e.get("event") == "bad_update" and e.get("parameter") == row.site.full_path), {})
    blame = _CHANGED if changed else _OF[event["cause"]](event) if event.get("cause") in _OF else _UNKNOWN
    return _finding(rows.step, row, blame, count, f"the update of {row.site.full_path} left {row.what} although its gradient was finite")


def about_to_be(rows: StepRows, row: Row, count: int) -> Finding:
    """The finding on a gradient that the loop made bad, before the optimizer has used it."""
    return _finding(rows.step, row, _CHANGED, count, f"the gradient of {row.site.full_path} has {row.what}")


def between(run: Run, previous: StepRows, step: int, row: Row, count: int) -> Finding | None:
    """The finding on a parameter that was written to after the update of `previous` and before `step`; None where nothing says so."""
    path = row.site.full_path
    events = [e for e in run.events if e.get("event") == "written_between_steps" and path in e.get("parameters", ())]
    event = next((e for e in events if e.get("step") == step), None)
    followed = [r for r in previous.of("update") if r.site.full_path == path]
    whole = bool(followed) and not any(r.nonfinite or r.site.sampled is not None for r in followed)
    if event is None and not whole:
        return None
    how = "by a tensor put in its place" if event is not None and event.get("how") == "replaced" else "in place"
    seen = f", {how}" if event is not None else "; the update before left it finite"
    also = f" ({event['count'] - 1} other parameters were written to as well)" if event is not None and event.get("count", 1) > 1 else ""
    blame = _Blame(
        f"; it was written between steps {previous.step} and {step}, by the program and no optimizer{seen}{also}",
        ("code of the loop that writes weights: an average of weights, a checkpoint loaded, weights clamped or drawn anew",),
        (f"look at what the loop does to {path} between two steps",),
        where="loop",
        confidence=0.95 if event is not None else 0.85,
    )
    return _finding(previous.step, row, blame, count, f"parameter {path} has {row.what}")


def _finding(step: int, row: Row, blame: _Blame, count: int, text: str) -> Finding:
    return Finding(
        rule="nonfinite-weight",
        severity="error",
        message=f"{text}{others(count)}{blame.text}",
        first_step=step,
        last_step=step,
        where=blame.where,
        phase="optimizer",
        site=row.site.name,
        module=row.site.full_module,
        confidence=blame.confidence,
        causes=blame.causes,
        advice=blame.advice,
        evidence={**row.counted, "parameters": count},
    )
