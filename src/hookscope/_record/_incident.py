"""An incident, read: what the flight recorder kept of the moment at which a training went wrong. Needs no torch."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from .._core._errors import RunUnreadableError
from .._core._finding import Finding
from ._columns import Rows, rows_of
from ._tail import SegmentTail

FORMAT = 1
FACTS, FRAMES, RANDOM, BATCH, CHECKPOINT = "incident.json", "frames.arrows", "random.json", "batch.pt", "checkpoint.pt"
Reason = Literal["finding", "exception", "signal"]


@dataclass(frozen=True, slots=True, repr=False)
class Incident:
    """One folder `incidents/<step>` of a run.

    `reason` says what made it be written: a `finding` of severity error, an `exception` that left the training, or a `signal`; `headline`
    is that in a line. `findings` and `origins` (the operations at which values went bad, as plain JSON) are those of this step; `error`
    holds type, message and traceback of an exception. `inputs` describes what the models were given: shape, dtype, device, SHA-256, min,
    max, NaN and Inf of each tensor. `stored` names what else lies in the folder, `missing` what does not, and why. `how` says how to go
    on.

    >>> from pathlib import Path
    >>> Incident(Path("runs/base/incidents/12"), 12, "signal", "SIGTERM at step 12").headline
    'SIGTERM at step 12'
    """

    path: Path
    step: int
    reason: Reason
    headline: str
    rank: int = 0
    time: str = ""
    findings: tuple[Finding, ...] = ()
    origins: tuple[dict[str, Any], ...] = ()
    error: dict[str, str] | None = None
    inputs: tuple[dict[str, Any], ...] = ()
    stored: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    checkpoint: str | None = None
    how: tuple[str, ...] = ()
    format: int = FORMAT

    def __repr__(self) -> str:
        return f"<hookscope incident of step {self.step}, {self.reason}: {textwrap.shorten(self.headline, 160, placeholder=' ...')}>"

    @property
    def rows(self) -> Rows:
        """The last frames before it, the step itself included as far as it went; sites are numbered as in the run."""
        file = self.path / FRAMES
        return rows_of(SegmentTail(file).read(), self.rank) if file.exists() else Rows.empty()

    @property
    def random(self) -> dict[str, Any] | None:
        """The states of the random generators, as JSON: when the forward began, if `at` is "forward", else when this was written."""
        file = self.path / RANDOM
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def read_incident(path: Path) -> Incident:
    """The incident in this folder; RunUnreadableError where there is none, or one of a newer format."""
    try:
        found = json.loads((path / FACTS).read_text(encoding="utf-8"))
        _check_format(int(found["format"]), path)
        known = {f.name: found[f.name] for f in fields(Incident) if f.name in found}
        lists = {name: tuple(known.get(name, ())) for name in ("origins", "inputs", "stored", "how")}
        return Incident(**{**known, **lists, "path": path, "findings": tuple(_finding(one) for one in known.get("findings", ()))})
    except RunUnreadableError:
        raise
    except OSError as problem:
        raise RunUnreadableError(f"no incident at {path}: {problem.strerror or problem}: {_near(path)}") from None
    except (ValueError, KeyError, TypeError) as problem:
        raise RunUnreadableError(f"no incident at {path}: its {FACTS} was not written by hookscope ({problem!r})") from None


def incident_paths(folder: Path) -> list[Path]:
    """The incidents in a run's folder, by step; one that was being written when the process died is passed over."""
    return sorted((p.parent for p in folder.glob(f"[0-9]*/{FACTS}")), key=lambda p: ([int(n) for n in p.name.split("-") if n.isdigit()]))


def _check_format(number: int, path: Path) -> None:
    if number > FORMAT:
        raise RunUnreadableError(f"the incident at {path} is written in format {number}; this hookscope reads formats up to {FORMAT}")


def _finding(found: dict[str, Any]) -> Finding:
    lists = {name: tuple(found.get(name, ())) for name in ("causes", "advice", "explains")}
    return Finding(**{**{f.name: found[f.name] for f in fields(Finding) if f.name in found}, **lists})


def _near(path: Path) -> str:
    """Where one is: the folder of a run was given, or a step that has none."""
    for folder in (path, path / "incidents", path.parent):
        if found := incident_paths(folder):
            return f"give one of {', '.join(repr(str(one)) for one in found[:3])}"
    return "give a folder incidents/<step> of a run"
