"""The tree as rows, with long runs of like siblings (h.0 … h.47) folded into one.

Siblings fold when they are numbered, built alike, free of findings, and alike in what they show: each number within a factor ten over
the whole run of them, so that growth through depth stays visible. What is still too long is folded more boldly, then cut at a
depth, then shortened; a module with a finding is never hidden.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ._view import Curve, ModuleView, Number

LEAST = 4  # siblings worth folding
ROWS = 60  # a picture that still fits a person's attention
EDGE = 8  # children kept at either end of a list that is shortened
FACTOR = 10.0


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the tree. `guides` tells for each level above whether more siblings follow there; `hidden` counts modules cut off below.

    `about`: its numbers are medians, since it or a module above it stands for several.
    """

    module: ModuleView
    guides: tuple[bool, ...] = ()
    hidden: int = 0
    about: bool = False


def rows(root: ModuleView, *, depth: int | None = None, most: int = ROWS) -> tuple[Row, ...]:
    """The rows to show: down to `depth` where it is given, else in about `most` rows."""
    strict = folded(root, FACTOR)
    if depth is not None:
        return tuple(_walk(strict, depth))
    for tree in (strict, folded(root, math.inf)):
        if amount(tree) <= most:
            return tuple(_walk(tree, None))
    for level in range(_deepest(tree), 0, -1):
        shown = tuple(_walk(tree, level))
        if len(shown) <= most:
            return shown
    return tuple(_walk(_shortened(tree), 1))


def amount(module: ModuleView) -> int:
    """Rows in this tree."""
    return 1 + sum(amount(child) for child in module.children)


def _deepest(module: ModuleView) -> int:
    return max((1 + _deepest(child) for child in module.children), default=0)


def total(module: ModuleView) -> int:
    """Modules in this tree, those counted that a folded row stands for."""
    return module.size * (1 + sum(total(child) for child in module.children))


def marked(module: ModuleView) -> bool:
    """Whether a finding names it or a module below it."""
    return bool(module.marks) or any(marked(child) for child in module.children)


def _walk(module: ModuleView, depth: int | None, guides: tuple[bool, ...] = (), about: bool = False) -> Iterator[Row]:
    about = about or module.size > 1
    at_limit = depth is not None and len(guides) >= depth
    shown = [child for child in module.children if not at_limit or marked(child)]
    hidden = sum(total(child) for child in module.children) - sum(total(child) for child in shown)
    yield Row(module, guides, hidden, about)
    for i, child in enumerate(shown):
        yield from _walk(child, depth, (*guides, i < len(shown) - 1), about)


def _shortened(module: ModuleView) -> ModuleView:
    """The middle of a very long list of children replaced by one row, findings kept."""
    children, out, gap = module.children, list[ModuleView](), 0
    for i, child in enumerate(children):
        if EDGE <= i < len(children) - EDGE and not marked(child):
            gap += total(child)
            continue
        out += [_gap(gap)] if gap else []
        out, gap = [*out, child], 0
    return replace(module, children=tuple(out))


def _gap(hidden: int) -> ModuleView:
    return ModuleView(name=f"… {hidden:,} more", path="")


def folded(module: ModuleView, factor: float) -> ModuleView:
    """The tree with runs of like siblings folded, where like means within that factor."""
    out: list[ModuleView] = []
    for group in _groups(module.children, factor):
        out += [_merged(group)] if len(group) >= LEAST else group
    return replace(module, children=tuple(folded(child, factor) for child in out))


def _groups(children: Sequence[ModuleView], factor: float) -> Iterator[list[ModuleView]]:
    group: list[ModuleView] = []
    low: list[float] = []
    high: list[float] = []
    for child in children:
        values = _numbers(child)
        wider = [min(a, b) for a, b in zip(low, values, strict=False)], [max(a, b) for a, b in zip(high, values, strict=False)]
        if group and _alike(group[-1], child) and all(b <= a * factor for a, b in zip(*wider, strict=True)):
            group, (low, high) = [*group, child], wider
            continue
        yield from [group] if group else []
        group, low, high = [child], values, values
    yield from [group] if group else []


def _alike(one: ModuleView, other: ModuleView) -> bool:
    numbered = one.name.isdecimal() and other.name.isdecimal()
    return numbered and not marked(one) and not marked(other) and _build(one) == _build(other)


def _build(module: ModuleView) -> tuple[object, ...]:
    kinds = tuple(_kind(value) for value in (module.output_rms, module.grad_norm, module.update_ratio))
    return (module.cls, module.shape, module.fired, kinds, tuple((child.name, _build(child)) for child in module.children))


def _kind(value: Number) -> str:
    """Absent, finite, zero, or which kind of not finite: modules that differ in this are never folded together."""
    return "absent" if value is None else "zero" if value == 0 else "finite" if math.isfinite(value) else str(value)


def _numbers(module: ModuleView) -> list[float]:
    own = [abs(v) for v in (module.output_rms, module.grad_norm, module.update_ratio) if v is not None and math.isfinite(v)]
    return own + [value for child in module.children for value in _numbers(child)]


def _merged(group: Sequence[ModuleView]) -> ModuleView:
    """One row for all: medians of what they show."""
    first, last = group[0], group[-1]
    return replace(
        first,
        name=f"{first.name}–{last.name}" if first.size == 1 else first.name,
        output_rms=_middle([each.output_rms for each in group]),
        grad_norm=_middle([each.grad_norm for each in group]),
        update_ratio=_middle([each.update_ratio for each in group]),
        gradient=_middle_curve([each.gradient for each in group]),
        size=len(group),
        children=tuple(replace(_merged(column), name=column[0].name, size=1) for column in _columns(group)),
    )


def _columns(group: Sequence[ModuleView]) -> list[tuple[ModuleView, ...]]:
    return list(zip(*(each.children for each in group), strict=True))


def _middle(values: Sequence[Number]) -> Number:
    present = [value for value in values if value is not None]
    return median(present) if present and all(map(math.isfinite, present)) else next(iter(present), None)


def _middle_curve(curves: Sequence[Curve | None]) -> Curve | None:
    present = [curve for curve in curves if curve is not None]
    if not present or len({curve.steps for curve in present}) > 1:
        return next(iter(present), None)
    columns = zip(*(curve.values for curve in present), strict=True)
    levels = zip(*(curve.heights for curve in present), strict=True)
    return Curve(present[0].steps, tuple(map(_middle, columns)), tuple(map(_middle, levels)))
