"""What `on_nonfinite="skip"` has kept from doing harm is a warning: the step had no effect, and the training is as sound as before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._core._finding import Finding
from ._order import NONFINITE

_SAVED = NONFINITE | {"nonfinite-input"}


def milder_where_left_out(findings: Iterable[Finding], events: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """The findings, with errors on steps that hookscope left out as warnings that say so."""
    steps = {event.get("step") for event in events if event.get("event") == "skipped" and event.get("by") == "hookscope"}
    return [_milder(finding) if _is_saved(finding, steps) else finding for finding in findings]


def _is_saved(finding: Finding, steps: set[Any]) -> bool:
    return finding.severity == "error" and finding.rule in _SAVED and finding.first_step in steps


def _milder(finding: Finding) -> Finding:
    return replace(finding, severity="warning", message=f"{finding.message}; on_nonfinite left this step out")
