"""A finding: what a rule saw in a run; and the diagnosis: all findings of a run, root cause first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

Severity = Literal["error", "warning", "info"]
Where = Literal["module", "loss", "optimizer", "data", "loop", "unknown"]
Phase = Literal["forward", "backward", "optimizer", "data", "init"]
Verdict = Literal["healthy", "warning", "sick"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


class Source(TypedDict):
    """A line of the user's code."""

    file: str
    line: int
    code: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a rule found.

    `module` is the origin (a path, `"(root)"` for the model itself, None outside the model) and `where` what kind of place that is;
    `"unknown"` where what was read of the step does not tell.
    `message` is one sentence with the numbers in it; `causes` and `advice` are ordered, likeliest first.
    `explains` holds positions, in the diagnosis, of findings that this one accounts for.

    >>> Finding("vanishing-grad", "warning", "gradients fade towards layers.0", first_step=0, last_step=19).headline
    'warning vanishing-grad at step 0: gradients fade towards layers.0'
    """

    rule: str
    severity: Severity
    message: str
    first_step: int
    last_step: int
    where: Where = "module"
    phase: Phase = "forward"
    site: str | None = None
    module: str | None = None
    op: str | None = None
    source: Source | None = None
    rank: int | None = None
    confidence: float = 1.0
    causes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)
    explains: tuple[int, ...] = ()

    @property
    def headline(self) -> str:
        """`error nonfinite-forward at step 12: ...` in one line."""
        return f"{self.severity} {self.rule} at step {self.first_step}: {self.message}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings of one run in causal order, root cause first.

    >>> found = Diagnosis("runs/base", 20, (Finding("vanishing-grad", "warning", "gradients fade", 0, 19),))
    >>> found.verdict, len(found.at_least("error"))
    ('warning', 0)
    """

    run: str
    steps: int
    findings: tuple[Finding, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """sick with an error among the findings, warning with a warning, else healthy."""
        found = {f.severity for f in self.findings}
        return "sick" if "error" in found else "warning" if "warning" in found else "healthy"

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings of that severity or a worse one."""
        return tuple(f for f in self.findings if SEVERITIES.index(f.severity) <= SEVERITIES.index(severity))

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {len(self.findings)} finding(s) in {self.steps} step(s)"]
        return "\n".join(lines + [f"{i + 1}. {f.headline}" for i, f in enumerate(self.findings)])
