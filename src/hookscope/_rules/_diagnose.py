"""Run the rules over a run and put what they find in causal order."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from .._core._errors import UsageError
from .._core._finding import SEVERITIES, Diagnosis, Finding
from .._core._select import Selectable, select_sites
from .._record import Run
from ._catalogue import RULES, Rule, rule_id
from ._exploding_grad import exploding_grad
from ._left_out import milder_where_left_out
from ._line import with_lines
from ._order import in_causal_order
from ._ranks import with_ranks


def diagnose(
    run: Run | str | os.PathLike[str],
    *,
    rules: Iterable[str | Rule] | None = None,
    select: Selectable | None = None,
    grad_norm_threshold: float | None = None,
) -> Diagnosis:
    """What went wrong in a run, root cause first.

    `run` is a `Run` or the directory of one. `rules` are ids (`"nonfinite-forward"`) or functions `rule(run) -> Iterator[Finding]` of
    your own; by default all that hookscope has. `select`, in the selection language, keeps the findings on those sites and those that are
    on no site. `grad_norm_threshold` switches `exploding-grad` on: a bound on the norm over all gradients of a step; by default the one
    that the watch was given.

    Findings of one rule with one origin and severity are one, from its first to its last step; `explains` holds the positions of those
    that follow from it. The verdict is `sick` with an error among them, `warning` with a warning, else `healthy`. Raises `UsageError` for
    an unknown rule, `SelectionError` where `select` matches nothing, `RunUnreadableError` where there is no run.

    A rule sees what was recorded: no target, no code outside modules, and nothing at sites that the run did not watch.

    >>> import numpy as np
    >>> from hookscope._core._frame import Frame
    >>> from hookscope._core._site import Site
    >>> from hookscope._record import MemoryWriter
    >>> writer = MemoryWriter()
    >>> writer.sites([Site(0, "", "output"), Site(1, "loss", "loss")])
    >>> at, seq = np.zeros(2, np.int32), np.array([0, 1], np.int32)
    >>> fine, nan = [4.0, 0, 0, 0, 2, 1.5, 0.1, 0.9], [1.0, 1, 0, 0, 0, 0, np.inf, -np.inf]
    >>> writer.frame(Frame(0, at, seq, at, seq, np.array([fine, nan])))
    >>> print(diagnose(writer.run))
    sick: 1 finding(s) in 1 step(s)
    1. error nonfinite-loss at step 0: the loss is NaN although all 1 finite module outputs stay within 0.9
    """
    opened = run if isinstance(run, Run) else Run(run)
    if grad_norm_threshold is None:
        asked = opened.meta.settings.get("grad_norm_threshold")
        grad_norm_threshold = float(asked) if isinstance(asked, (int, float)) else None
    chosen = RULES if rules is None else tuple(_rule(rule) for rule in rules)
    bound = {exploding_grad: partial(exploding_grad, grad_norm_threshold=grad_norm_threshold)}
    with np.errstate(all="ignore"):  # NaN and Inf are what is looked for
        found = with_lines([finding for rule in chosen for finding in bound.get(rule, rule)(opened)], opened.events)
        found = list(with_ranks(milder_where_left_out(found, opened.events), opened))
    merged = _merged(found if select is None else _selected(found, opened, select))
    return Diagnosis(str(opened.path or "in memory"), len(opened.steps), in_causal_order(merged))


def _rule(wanted: str | Rule) -> Rule:
    if callable(wanted):
        return wanted
    known = {rule_id(rule): rule for rule in RULES}
    if wanted not in known:
        near = difflib.get_close_matches(str(wanted), known, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"unknown rule {wanted!r}: {hint}choose from {', '.join(known)}, or pass a function of a run")
    return known[wanted]


def _selected(found: Sequence[Finding], run: Run, select: Selectable) -> list[Finding]:
    names = {site.name for site in select_sites(run.sites, select)}
    return [f for f in found if f.site is None or f.site in names]


def _merged(found: Sequence[Finding]) -> list[Finding]:
    """The first of each rule, origin and severity, up to the last step of any; those that name a kind, of each kind."""
    kept: dict[tuple[str | None, ...], list[Finding]] = {}
    for finding in found:
        key = finding.rule, finding.severity, finding.where, finding.module, finding.evidence.get("kind")
        kept.setdefault(key, []).append(finding)
    return [
        _one(sorted(group, key=lambda f: f.first_step)) for group in sorted(kept.values(), key=lambda g: SEVERITIES.index(g[0].severity))
    ]


def _one(group: Sequence[Finding]) -> Finding:
    first = group[0]
    if len(group) == 1:
        return first
    again = {"occurrences": len(group)}
    return replace(first, last_step=max(f.last_step for f in group), evidence={**first.evidence, **again})
