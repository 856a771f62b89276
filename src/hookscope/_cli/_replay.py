"""run a program again up to an incident of a recorded run, every operation looked at, and say where it goes bad

    hookscope replay runs/base/incidents/12
    hookscope replay runs/base/incidents/12 --script train.py --epochs 3

The program runs from its start, in a process of its own, records nothing, and ends as soon as the origin is known or the step is over;
what it prints goes to stderr. It has to come to the same step by itself, so it should set its seeds. Without --script it is what
`hookscope run` was given then. All that stands behind the script are its own arguments.

Exit status: 0 the origin was seen, 1 it was not, 2 wrong use, 3 no such incident.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._core._errors import RunUnreadableError, UsageError

if TYPE_CHECKING:
    from .._record import Incident


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("path", metavar="INCIDENT", help="a folder incidents/<step> of a run")
    parser.add_argument("--script", nargs=argparse.REMAINDER, metavar="script.py ...", help="the script and its own arguments")


def run(args: argparse.Namespace) -> int:
    """Run it and say what was seen."""
    from .._record._incident import read_incident
    from ._screen import write

    incident = read_incident(Path(args.path))
    command = _command(incident, args.script)
    origins, status = _rerun(command, incident.step)
    write("\n".join(_lines(incident, origins, status)) + "\n")
    return 0 if origins else 1


def _command(incident: Incident, script: Sequence[str] | None) -> list[str]:
    """The program, as it was run then: under `hookscope run`, or with a watch of its own."""
    settings = _settings(incident)
    recorded = settings.get("command")
    given = list(script) if script else list(recorded or ())
    if not given:
        raise UsageError(f"which program wrote {incident.path}? give it: hookscope replay {incident.path} --script train.py [arguments]")
    as_module = not script and bool(settings.get("module"))
    if not as_module and not os.path.isfile(given[0]):
        raise UsageError(f"cannot run {given[0]!r}: there is no such file; give the script with --script, from the folder it was run in")
    if recorded is None:
        return [sys.executable, *given]
    return [sys.executable, "-m", "hookscope", "run", "--quiet", *(["-m"] if as_module else []), *given]


def _settings(incident: Incident) -> dict[str, Any]:
    from .._record import Run

    try:
        return dict(Run(incident.path.parent.parent).meta.settings)
    except RunUnreadableError:  # the folder was taken elsewhere
        return {}


def _rerun(command: list[str], step: int) -> tuple[list[dict[str, Any]], int]:
    """The origins that the program saw, and its exit status."""
    from tempfile import TemporaryDirectory

    from .._watch._armed import Armed

    with TemporaryDirectory(prefix="hookscope-replay-") as folder:
        seen = Path(folder) / "origins.jsonl"
        if command[2:4] == ["hookscope", "run"]:
            command = [*command[:4], "--to", str(Path(folder) / "run"), *command[4:]]
        armed = Armed(step, to=str(seen), stop=True).as_environment()
        sys.stdout.flush()
        # The user's own script.
        status = subprocess.run(command, env={**os.environ, **armed}, stdout=sys.stderr, check=False).returncode  # noqa: S603  # the user's own program
        return ([json.loads(line) for line in seen.read_text(encoding="utf-8").splitlines()] if seen.exists() else []), status


def _lines(incident: Incident, origins: Sequence[dict[str, Any]], status: int) -> list[str]:
    from .._rules._line import sentence

    lines = [incident.headline]
    for origin in {json.dumps(one): one for one in origins}.values():
        place = f"in {origin['module']}" if origin.get("module") else "outside the model"
        lines.append(f"  seen again at step {origin['step']}, {place}: {sentence(origin)}")
        if origin.get("file"):
            lines.append(f"    {origin['file']}:{origin['line']}  {origin.get('code') or ''}".rstrip())
    if not origins and status:
        lines.append(f"  not seen: the program ended with status {status} before step {incident.step} was over")
    elif not origins:
        lines.append(f"  not seen: nothing went bad up to step {incident.step} this time; does the program set its seeds?")
    return lines
