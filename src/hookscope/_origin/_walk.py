"""From what is bad at the end, back along what was made of what, to the operation that made it first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ._tracer import Step, Trace
from ._verdict import Direction, Verdict

# They write the value they are told to: an infinity from them is a mask or a start value, meant to be there.
_ON_PURPOSE = frozenset(
    {
        "masked_fill",
        "masked_fill_",
        "full",
        "full_like",
        "new_full",
        "fill",
        "fill_",
        "scalar_tensor",
        "where",
        "lift_fresh",
        "lift_fresh_copy",
        "constant_pad_nd",
        "index_fill",
        "index_fill_",
        "scatter",
        "scatter_",
        "masked_scatter",
        "_local_scalar_dense",
    }
)


def origin(trace: Trace, bad: Iterable[torch.Tensor]) -> Verdict | None:
    """The verdict on the first of these bad tensors; None where all that is bad was put there on purpose, or came from outside.

    Where none of them can be traced, the first operation that made something bad out of something good.
    """
    makers = sorted({maker for tensor in bad if (maker := trace.maker(tensor)) is not None})
    return _first(trace, makers or [i for i, step in enumerate(trace.steps) if step.made and not step.given])


def origin_within(trace: Trace) -> Verdict | None:
    """The verdict on the first module that returned something bad, whatever became of that; None where none did."""
    return _first(trace, trace.returned)


@dataclass(frozen=True, slots=True)
class Leap:
    """Finite values that have become far larger: in which direction; an operation that made them more than `most` times as large as what
    went in has done so before.
    """

    direction: Direction
    most: float


def origin_of_leap(trace: Trace, leap: Leap) -> Verdict | None:
    """The verdict on the operation whose result is largest against what went in; None where none has leapt."""
    steps = [step for step in trace.steps if 0 < step.growth <= leap.most and not step.made and step.op not in _ON_PURPOSE]
    among = [step for step in steps if (step.node is not None) == (leap.direction == "backward")]
    return verdict_of(max(among, key=lambda step: step.growth)) if among else None


def _first(trace: Trace, starts: Iterable[int]) -> Verdict | None:
    return next((verdict for start in starts if (verdict := _from(trace, start)) is not None), None)


def _from(trace: Trace, start: int) -> Verdict | None:
    path = [start]
    while parents := [p for p in trace.steps[path[-1]].parents if p < path[-1]]:
        step = trace.steps[path[-1]]
        # Of what is NaN, the NaN is followed before an Inf, and a made Inf before one that was put there.
        path.append(min(parents, key=lambda p: (step.given.nan and not trace.steps[p].made.nan, trace.steps[p].op in _ON_PURPOSE, p)))
    first = trace.steps[path[-1]]
    on_purpose = first.op in _ON_PURPOSE and not first.given
    if not on_purpose and not first.given:
        return verdict_of(first)
    turned = next((trace.steps[i] for i in reversed(path) if trace.steps[i].made.nan and not trace.steps[i].given.nan), None)
    if turned is not None and (turned is not first or first.given):
        return verdict_of(turned, because=f"{first.op} had put an infinity there" if on_purpose else "an infinity came in from outside")
    return verdict_of(first) if on_purpose and first.made.nan else None


def verdict_of(step: Step, *, because: str | None = None) -> Verdict:
    """The step as a verdict."""
    place, backward = step.place, step.node is not None
    op = forward_name(step.node) if step.node is not None else step.op
    kinds = " and ".join(name for name, there in (("NaN", step.made.nan), ("Inf", step.made.inf)) if there)
    return Verdict(
        op=op,
        direction="backward" if backward else "forward",
        module=place.module,
        function=place.function if place.function != op else None,
        file=place.file,
        line=place.line,
        operands=step.operands,
        result=kinds or f"{step.growth:.3g} times as large",
        growth=0.0 if kinds else step.growth,
        samples=step.samples,
        because=because,
    )


def forward_name(node: str) -> str:
    """`native_layer_norm` of `NativeLayerNormBackward0`; a Function of the program's own (`MineBackward`, no number) keeps its name."""
    name = node.rsplit("::", 1)[-1]
    if (stem := re.sub(r"Backward\d+$", "", name)) != name:
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()
    return name.removesuffix("Backward")
