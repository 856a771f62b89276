"""What a second run of a program was asked for: to look at every operation from some step on, and to stop when that step is over."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .._core._errors import UsageError
from .._origin._verdict import Verdict

VARIABLE = "HOOKSCOPE_ARMED"


@dataclass(frozen=True, slots=True)
class Armed:
    """From step `step` on every operation of the program is looked at while it runs, not run again afterwards.

    Verdicts are appended to the file `to`, a JSON object a line (none: they stand in the run alone). With `stop`, the program ends with
    status 0 as soon as there is a verdict or the step, or step `last` if given, is over. A watch in an armed program records in memory:
    its own directory holds the first run.
    """

    step: int
    to: str | None = None
    stop: bool = False
    last: int | None = None

    @property
    def until(self) -> int:
        """The last step that is looked at before it stops."""
        return self.step if self.last is None else self.last

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Armed | None:
        """What the variable `HOOKSCOPE_ARMED` asks for: a step, or the fields of this class as JSON; None where it is not set."""
        asked = environment.get(VARIABLE)
        if not asked:
            return None
        try:
            found = json.loads(asked)
            armed = cls(**found) if isinstance(found, dict) else cls(found)
        except (ValueError, TypeError):
            armed = cls(-1)
        if isinstance(armed.step, bool) or not isinstance(armed.step, int) or armed.step < 0:
            raise UsageError(f'{VARIABLE}={asked!r} arms nothing: give the number of a step, such as 12, or {{"step": 12, "stop": true}}')
        return armed

    def as_environment(self) -> dict[str, str]:
        """The variable that arms a program started with it."""
        return {VARIABLE: json.dumps(asdict(self))}

    def write(self, step: int, verdict: Verdict) -> None:
        """Append a verdict to the file, if there is to be one."""
        if self.to is not None:
            with Path(self.to).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **verdict.as_event()}) + "\n")


class Stopped(SystemExit):
    """Ends an armed program that has shown what it was run for; no `except Exception` of the program's holds it."""
