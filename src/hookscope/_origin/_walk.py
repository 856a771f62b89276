"""From what is bad at the end, back along what was made of what, to the operation that made it first."""

from __future__ import annotations

import re
import sys
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


def writer_of(trace: Trace, bad: Iterable[torch.Tensor], *, given: str = "it wrote what it was given") -> Verdict | None:
    """The verdict on the earliest operation behind one of these that was itself given, or told to write, what is bad.

    `given` says where that came from; of what it was told to write this is known.
    """
    makers = sorted({maker for tensor in bad if (maker := trace.maker(tensor)) is not None})
    if not makers:
        return None
    step = trace.steps[_path(trace, makers[0])[-1]]
    return verdict_of(step, because=given if step.given else "it wrote what it was given")


@dataclass(frozen=True, slots=True)
class Leap:
    """Finite values that have become far larger, or smaller: in which direction; an operation that made them more than `most` times as
    large as what went in has done so before, and so has, where `most` is below 1, one that made them a smaller share of it.
    """

    direction: Direction
    most: float


def origin_of_leap(trace: Trace, leap: Leap) -> Verdict | None:
    """The verdict on the operation whose result is largest against what went in, or, of a fall, smallest; None where there is none."""
    steps = [step for step in trace.steps if not step.made and step.op not in _ON_PURPOSE]
    if leap.most < 1:  # a factor of next to 0 may show in the gradients alone, where a bias hides it from the outputs
        fallen = [step for step in steps if leap.most <= step.growth <= 1e3 * leap.most]
        return verdict_of(min(fallen, key=lambda step: step.growth)) if fallen else None
    risen = [step for step in steps if 1 < step.growth <= leap.most and (step.node is not None) == (leap.direction == "backward")]
    return verdict_of(max(risen, key=lambda step: step.growth)) if risen else None


def _first(trace: Trace, starts: Iterable[int]) -> Verdict | None:
    return next((verdict for start in starts if (verdict := _from(trace, start)) is not None), None)


def _path(trace: Trace, start: int) -> list[int]:
    path = [start]
    while parents := [p for p in trace.steps[path[-1]].parents if p < path[-1]]:
        step = trace.steps[path[-1]]
        # Of what is NaN, the NaN is followed before an Inf, and a made Inf before one that was put there.
        path.append(min(parents, key=lambda p: (step.given.nan and not trace.steps[p].made.nan, trace.steps[p].op in _ON_PURPOSE, p)))
    return path


def _from(trace: Trace, start: int) -> Verdict | None:
    path = _path(trace, start)
    first = trace.steps[path[-1]]
    on_purpose = first.op in _ON_PURPOSE and not first.given
    if not on_purpose and not first.given:
        return verdict_of(first)
    turned = next((trace.steps[i] for i in reversed(path) if trace.steps[i].made.nan and not trace.steps[i].given.nan), None)
    if turned is None and trace.steps[start].harm:  # a loss that has picked a masked place is Inf, not NaN
        turned = next((trace.steps[i] for i in reversed(path) if trace.steps[i].harm and not trace.steps[i].harmed), None)
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
        growth=0.0 if kinds else max(step.growth, sys.float_info.min),
        samples=step.samples,
        because=because,
    )


def forward_name(node: str) -> str:
    """`native_layer_norm` of `NativeLayerNormBackward0`; a Function of the program's own (`MineBackward`, no number) keeps its name."""
    name = node.rsplit("::", 1)[-1]
    if (stem := re.sub(r"Backward\d+$", "", name)) != name:
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()
    return name.removesuffix("Backward")
