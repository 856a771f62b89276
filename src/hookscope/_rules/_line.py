"""Joins what the watch found by running a bad step again (events `origin`: operation, line, operands) to the findings about that step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from .._core._finding import Finding, Source

_FORWARD = frozenset({"nonfinite-forward", "nonfinite-loss", "nonfinite-input"})
_BACKWARD = frozenset({"nonfinite-backward"})
_LEAPT = frozenset({"exploding-grad", "grad-runaway", "leap"})
_FIRST = _FORWARD | _BACKWARD | {"nonfinite-weight"}
_FOUND = ("detect_anomaly", "look at each operation")  # advice on finding the line


def with_lines(findings: Iterable[Finding], events: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """The findings, those that the second run explains with their operation, line, operands and samples."""
    origins = [event for event in events if event.get("event") == "origin"]
    ranks = any("rank" in event for event in events)  # those of rank 0 carry none
    origins = [{"rank": 0, **origin} for origin in origins] if ranks else origins
    return [_named(finding, origin) if (origin := _match(finding, origins)) else finding for finding in findings]


def _match(finding: Finding, origins: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    wanted = "forward" if finding.rule in _FORWARD else "backward" if finding.rule in _BACKWARD else None
    now = [origin for origin in origins if origin.get("step") == finding.first_step]
    if (again := next((origin for origin in now if origin.get("second_run")), None)) is not None and finding.rule in _FIRST:
        return again
    if finding.rule in _LEAPT:
        return next((origin for origin in now if origin.get("growth")), None)
    return next((origin for origin in now if origin.get("direction") == wanted and not origin.get("growth")), None)


def _named(finding: Finding, origin: Mapping[str, Any]) -> Finding:
    if origin["op"] == "input":  # no operation made it: it came with the batch
        samples = {"samples": origin["samples"]} if origin.get("samples") else {}
        return replace(finding, message=f"{finding.message}{_samples(origin)}", evidence={**finding.evidence, **samples})
    outside = bool(origin.get("outside"))
    where, module = finding.where, finding.module
    inside = not outside and (origin.get("exact") or where == "unknown") and origin.get("module")
    if outside and where in ("module", "unknown"):
        where, module = "loss", None
    elif inside:
        where, module = "module", str(origin["module"])
    return replace(
        finding,
        where=where,
        module=module,
        op=str(origin["op"]),
        source=_source(origin),
        rank=origin.get("rank"),
        message=f"{finding.message}; {sentence(origin)}",
        advice=tuple(text for text in finding.advice if not any(words in text for words in _FOUND)),
        evidence={**finding.evidence, **_evidence(origin)},
        confidence=max(finding.confidence, 0.95) if origin.get("exact") and not origin.get("growth") else finding.confidence,
    )


def _source(origin: Mapping[str, Any]) -> Source | None:
    file, line = origin.get("file"), origin.get("line")
    return Source(file=str(file), line=int(line), code=str(origin.get("code") or "")) if file and line else None


def sentence(origin: Mapping[str, Any]) -> str:
    """What the operation did, where, and to what."""
    function = f" (of {origin['function']})" if origin.get("function") else ""
    done = _growth(float(origin["growth"])) if origin.get("growth") else "made it"
    action = f"{'' if origin.get('direction') == 'forward' else 'the backward of '}{origin['op']}{function} {done}"
    line = f" at {PurePath(str(origin['file'])).name}:{origin['line']}" if origin.get("file") else ""
    operands = [text for operand in origin.get("operands") or () if (text := _operand(operand))]
    given = f" from {' and '.join(operands[:3])}" if operands else ""
    where = _samples(origin) + (f", on rank {origin['rank']}" if "rank" in origin else "")
    because = f"; {origin['because']}" if origin.get("because") else ""
    notes = "; ".join(origin.get("notes") or ())
    doubt = (
        f" ({notes})"
        if origin.get("exact") and notes
        else ""
        if origin.get("exact")
        else f" (approximate: {notes or 'the second run differed'})"
    )
    return f"{action}{line}{given}{where}{because}{doubt}"


def _growth(times: float) -> str:
    return f"made values {times:.3g} times as large" if times > 1e-300 else "made values 0"


def _samples(origin: Mapping[str, Any]) -> str:
    samples = list(origin.get("samples") or ())
    return f", in sample{'s' if len(samples) > 1 else ''} {', '.join(map(str, samples[:5]))} of the batch" if samples else ""


def _operand(operand: Mapping[str, Any]) -> str:
    low, high = _number(operand.get("min")), _number(operand.get("max"))
    bad = [f"{operand[kind]:,} {name}" for kind, name in (("nan", "NaN"), ("inf", "Inf")) if operand.get(kind)]
    values = "" if math.isnan(low) else f"{low:.3g}" if low == high else f"values in {low:.3g} .. {high:.3g}"
    return " with ".join(part for part in (values, " and ".join(bad)) if part)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _evidence(origin: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: origin[name] for name in ("function", "samples", "because", "notes") if origin.get(name)}
    return {"operation": origin["op"], "exact": bool(origin.get("exact")), "operands": list(origin.get("operands") or ()), **found}
