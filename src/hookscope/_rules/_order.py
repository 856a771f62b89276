"""Causes before effects: which findings explain which, and the order that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .._core._finding import SEVERITIES, Finding

NONFINITE = frozenset({"nonfinite-forward", "nonfinite-loss", "nonfinite-backward", "nonfinite-weight"})
PROFILE = frozenset({"vanishing-grad", "act-shrink-depth"})
EXPLOSION = frozenset({"act-explode-depth", "lr-too-high", "grad-runaway", "exploding-grad-depth", "exploding-grad"})
# Earlier in this list is nearer to the cause when several rules speak of one run.
PRIORITY: tuple[str, ...] = (
    "nonfinite-input",
    "optimizer-setting",
    "rank-divergence",
    "rank-data",
    "act-explode-depth",
    "leap",
    "nonfinite-weight",
    "nonfinite-forward",
    "nonfinite-loss",
    "nonfinite-backward",
    "lr-too-high",
    "vanishing-grad",
    "act-shrink-depth",
    "exploding-grad-depth",
    "grad-runaway",
    "exploding-grad",
    "rank-apart",
    "rank-no-gradient",
    "rank-steps",
    "blind",
)
# What each rule accounts for when the other finding is not earlier than it.
EXPLAINS: dict[str, frozenset[str]] = {
    "optimizer-setting": NONFINITE | EXPLOSION | {"leap"},
    "nonfinite-input": NONFINITE | {"grad-runaway", "leap"},
    "act-explode-depth": NONFINITE | EXPLOSION - {"act-explode-depth"},
    "lr-too-high": NONFINITE | {"grad-runaway", "exploding-grad", "exploding-grad-depth", "leap"} | PROFILE,
    "leap": NONFINITE | {"grad-runaway", "exploding-grad", "lr-too-high"},
    "vanishing-grad": frozenset({"act-shrink-depth"}),
    "exploding-grad-depth": NONFINITE | {"grad-runaway", "exploding-grad"},
    "grad-runaway": NONFINITE | {"exploding-grad"},
    "exploding-grad": frozenset(),
    **{rule: frozenset({"nonfinite-weight", "grad-runaway", "lr-too-high", "leap"}) for rule in NONFINITE},
}
NEEDS_LEAD = frozenset({"lr-too-high", "grad-runaway", "exploding-grad-depth"})  # an explosion comes at least a step before its NaN


def in_causal_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Root causes first, each with the positions it explains; an effect stands behind all its causes."""
    ordered = sorted(findings, key=lambda f: (f.severity == "info", _generation(f, findings), *_rank(f)))
    return tuple(replace(f, explains=tuple(i for i, g in enumerate(ordered) if explains(f, g))) for f in ordered)


def _generation(finding: Finding, findings: Sequence[Finding]) -> int:
    """0 for a root cause, else one more than the latest of its causes."""
    return max((1 + _generation(cause, findings) for cause in findings if explains(cause, finding)), default=0)


def explains(cause: Finding, effect: Finding) -> bool:
    """Whether `cause` accounts for `effect`."""
    if cause is effect or cause.severity == "info" or effect.rule not in EXPLAINS.get(cause.rule, frozenset()):
        return False
    lead = 1 if cause.rule in NEEDS_LEAD and effect.rule in NONFINITE else 0
    if cause.rule in NONFINITE and effect.rule in NONFINITE:
        return effect.evidence.get("follows") == cause.first_step and cause.rule != "nonfinite-weight"
    if effect.rule == "leap" and effect.first_step == cause.first_step and cause.rule != "nonfinite-input":
        return False  # it is the leap that came first
    if cause.rule in NONFINITE:
        return effect.first_step >= cause.first_step and cause.first_step <= 1
    if (cause.rule, effect.rule) == ("lr-too-high", "grad-runaway"):
        return True  # one explosion, seen by its updates and by its gradients, whichever crosses its bound first
    return cause.first_step + lead <= effect.first_step


def _rank(finding: Finding) -> tuple[int, int, int]:
    place = PRIORITY.index(finding.rule) if finding.rule in PRIORITY else len(PRIORITY)
    return (place, finding.first_step, SEVERITIES.index(finding.severity))
