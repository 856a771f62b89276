"""How much of a training a run has seen, what not and why, and what the watching cost."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._core._finding import Diagnosis
from .._core._site import ROOT
from .._rules._silence import Evidence, named_in
from ._blindness import spent, trained
from ._build import finding_view
from ._json import FORMAT, diagnosis_json
from ._view import FindingView

if TYPE_CHECKING:
    from .._record import Run


@dataclass(frozen=True, slots=True)
class Sight:
    """The coverage of one run. Modules are those with a forward of their own; parameters are whole tensors.

    `seconds`, `spent_seconds` (of them in hookscope itself) and `size_bytes` are None where unknown. `status` is that of the run: until it
    is `finished`, `failed` or `interrupted`, what a watch tells at its end is not there.
    """

    run: str
    status: str
    steps: int
    modules: int
    fired: int
    evaluated: int
    parameters: int
    trainable: int
    graded: int
    sites: tuple[tuple[str, int], ...]
    findings: tuple[FindingView, ...] = ()
    unread_bytes: int = 0
    seconds: float | None = None
    spent_seconds: float | None = None
    size_bytes: int | None = None
    trained: int = 0  # steps there were, recorded or not

    @property
    def ended(self) -> bool:
        """Whether the watch has had its last word."""
        return self.status in ("finished", "failed", "interrupted")

    @property
    def title(self) -> str:
        """`all seen`, `partly seen` or `nothing recorded`."""
        if not self.steps:
            return "nothing recorded"
        return "partly seen" if self.findings or self.unread_bytes or not self.ended else "all seen"


def sight(run: Run, diagnosis: Diagnosis, *, name: str = "") -> Sight:
    """Count what was seen in `run`; `diagnosis` holds what the rule `blind` found in it. `name`: what to call it, if not by its directory.

    >>> from hookscope._record import MemoryWriter
    >>> sight(MemoryWriter().run, Diagnosis("in memory", 0)).title
    'nothing recorded'
    """
    evidence, summary = Evidence(run), run.summary()
    silent = {*named_in(run, "never_fired"), *named_in(run, "unhookable")}
    kinds = Counter(site.kind for site in run.sites)
    return Sight(
        run=name or str(diagnosis.run),
        status=str(summary.status),
        steps=len(run.steps),
        trained=trained(run),
        modules=len(evidence.fired | evidence.evaluated | silent),
        fired=len(evidence.fired),
        evaluated=len(evidence.evaluated - evidence.fired),
        parameters=evidence.parameters[ROOT],
        trainable=evidence.trainable[ROOT],
        graded=evidence.graded[ROOT],
        sites=tuple(kinds.items()),
        findings=tuple(finding_view(i + 1, finding) for i, finding in enumerate(diagnosis.findings)),
        unread_bytes=summary.unread_bytes,
        seconds=summary.duration,
        spent_seconds=spent(run.events),
        size_bytes=summary.bytes or None,
    )


def sight_json(seen: Sight, diagnosis: Diagnosis, *, indent: int | None = 2) -> str:
    """It as JSON text: the fields of `Sight`, with `title`, `sites` by kind, and the findings as in the JSON of a diagnosis."""
    fields = {field.name: getattr(seen, field.name) for field in dataclasses.fields(seen)}
    findings = json.loads(diagnosis_json(diagnosis))["findings"]
    document = {"format": FORMAT, "title": seen.title, **fields, "sites": dict(seen.sites), "findings": findings}
    return json.dumps(document, indent=indent, allow_nan=False, ensure_ascii=False)
