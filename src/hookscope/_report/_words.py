"""Numbers, sizes, times and evidence as a reader wants to see them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

ABSENT = "·"


def number(value: float | None) -> str:
    """Two or three significant digits in at most eight characters; NaN and Inf as such, a dot for what was not recorded."""
    if value is None:
        return ABSENT
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"
    if value == 0:
        return "0"
    if 1e-2 <= abs(value) < 1e4:
        return _fixed(value)
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _fixed(value: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"


def count(number: int, noun: str) -> str:
    """`1 step`, `1,200 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def recorded(steps: int, of: int) -> str:
    """`40 steps`, or `40 of 2,000 steps` where some were left out."""
    return count(steps, "step") if of <= steps else f"{steps:,} of {count(of, 'step')}"


def steps(first: int, last: int) -> str:
    """`step 12` or `steps 12–40`."""
    return f"step {first:,}" if first == last else f"steps {first:,}–{last:,}"


def shape(sizes: Sequence[int] | None) -> str:
    """`64×8×8`; nothing where unknown."""
    return "" if sizes is None else "×".join(map(str, sizes)) or "scalar"


def seconds(value: float) -> str:
    """`0.42 s`, `12 s`, `3 min 05 s`, `2 h 07 min`."""
    if value < 10:
        return f"{value:.2g} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(octets: int) -> str:
    """`812 B`, `24 kB`, `1.3 MB`: decimal units."""
    value = float(octets)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def evidence(items: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The evidence of a finding as short pairs of text."""
    return tuple((key.replace("_", " "), fact(value)) for key, value in items.items())


def fact(value: Any) -> str:
    """One piece of evidence: numbers in three digits, long lists by their beginning."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping) and value.keys() >= {"shape", "dtype", "min", "max"}:
        return _operand(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {fact(inner)}" for key, inner in value.items())
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple | set | frozenset):
        return _listing(list(value))
    if isinstance(value, int):
        return f"{value:,}"
    return number(value) if isinstance(value, float) else str(value)


def _operand(tensor: Mapping[str, Any]) -> str:
    """`32×10 float32 in 0 .. 1.00 with 3 NaN`: what went into an operation."""
    shape = "".join(f"{size} " for size in ["×".join(map(str, tensor["shape"]))] if size)
    bad = " and ".join(f"{tensor[kind]:,} {name}" for kind, name in (("nan", "NaN"), ("inf", "Inf")) if tensor.get(kind))
    values = f"{shape}{tensor['dtype']} in {fact(tensor['min'])} .. {fact(tensor['max'])}"
    return f"{values} with {bad}" if bad else values


def _listing(values: list[Any]) -> str:
    shown = ", ".join(fact(value) for value in values[:6])
    return f"{shown}, … ({len(values):,})" if len(values) > 6 else shown
