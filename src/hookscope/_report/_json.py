"""A diagnosis as JSON for other programs: format 1, strict (NaN and Inf are written as the strings "nan", "inf" and "-inf")."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from .._core._finding import Diagnosis, Finding

FORMAT = 1
_ORDER = (
    *("rule", "severity", "site", "module", "where", "phase", "op", "source", "first_step", "last_step", "rank", "confidence"),
    *("message", "causes", "advice", "evidence", "explains"),
)


def diagnosis_json(diagnosis: Diagnosis, *, indent: int | None = 2) -> str:
    """The diagnosis as JSON text.

    `steps` is the number of steps in the run; a finding's `explains` holds positions in `findings`, counted from 0.

    >>> from hookscope._core._finding import Diagnosis
    >>> print(diagnosis_json(Diagnosis("runs/base", 40), indent=None))
    {"format": 1, "run": "runs/base", "steps": 40, "verdict": "healthy", "findings": []}
    """
    document = {
        "format": FORMAT,
        "run": str(diagnosis.run),
        "steps": int(diagnosis.steps),
        "verdict": diagnosis.verdict,
        "findings": [_finding(finding) for finding in diagnosis.findings],
    }
    return json.dumps(document, indent=indent, allow_nan=False, ensure_ascii=False)


def _finding(finding: Finding) -> dict[str, Any]:
    return {name: _plain(getattr(finding, name)) for name in _ORDER}


def _plain(value: Any) -> Any:
    """The value in JSON's own types: arrays and tuples as lists, numbers that JSON lacks as text, anything else by its str()."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
