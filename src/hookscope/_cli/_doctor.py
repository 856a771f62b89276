"""say what hookscope finds here, what a run has seen of its training, and what not and why

    hookscope doctor
    hookscope doctor runs/base
    hookscope doctor train.py --epochs 1

Without an argument: versions, the code that reads tensors, optional parts, devices. With a run: how much of the training it has seen,
what is missing, why, and the way out. With a script: it is run for real, watched into a temporary run, and then the same is said of
that; its output goes where it always goes, with --json to stderr. Options of hookscope stand before the run or the script.

Exit status: 0 said, 2 wrong use, 3 a run that cannot be read.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._core._errors import UsageError

if TYPE_CHECKING:
    from ._environment import Environment


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="the same as JSON (format 1)")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="RUN | script.py ...", help="a run's directory, or a script and its own arguments"
    )


def run(args: argparse.Namespace) -> int:
    """Say it."""
    if not args.command:
        _tell_environment(as_json=args.json)
        return 0
    target, *rest = args.command
    if not Path(target).is_dir() and (os.path.isfile(target) or target.endswith(".py")):
        _tell_script(target, rest, as_json=args.json)
    elif rest:
        raise UsageError(f"{' '.join(rest)!r} follows the run {target!r}: options stand before it, and it takes no arguments")
    else:
        _tell_run(target, as_json=args.json)
    return 0


def _tell_run(path: str | Path, *, as_json: bool, name: str = "") -> None:
    from .._record import Run
    from .._report import SightPicture, sight, sight_json
    from .._rules import diagnose
    from ._screen import show, write

    recorded = Run(path)
    found = diagnose(recorded, rules=["blind"])
    seen = sight(recorded, found, name=name)
    if as_json:
        write(sight_json(seen, found) + "\n")
    else:
        show(SightPicture(seen))


def _tell_script(script: str, arguments: Sequence[str], *, as_json: bool) -> None:
    """In a process of its own, so that it ends as it wants to."""
    from tempfile import TemporaryDirectory

    if not os.path.isfile(script):
        raise UsageError(f"cannot run {script!r}: there is no such file")
    with TemporaryDirectory(prefix="hookscope-doctor-") as folder:
        place = Path(folder) / "run"
        command = [sys.executable, "-m", "hookscope", "run", "--quiet", "--to", str(place), script, *arguments]
        sys.stdout.flush()
        code = subprocess.run(command, stdout=sys.stderr if as_json else None, check=False).returncode  # noqa: S603  # the user's own script
        ending = f", which ended with status {code}" if code else ""
        _tell_run(place, as_json=as_json, name=f"{script}{ending}")


def _tell_environment(*, as_json: bool) -> None:
    from ._environment import environment
    from ._screen import show, write

    found = environment()
    if as_json:
        write(json.dumps(_document(found), indent=2) + "\n")
        return
    from .._report import Listing

    show(Listing("healthy" if found.ready else "warning", found.verdict, "", tuple(_lines(found))))


def _document(found: Environment) -> dict[str, Any]:
    import dataclasses

    return {"format": 1, "ready": found.ready, "verdict": found.verdict, **dataclasses.asdict(found)}


def _lines(found: Environment) -> Iterator[tuple[str, str]]:
    yield "versions", " · ".join(f"{name} {number or 'not installed'}" for name, number in found.versions.items())
    if found.kernel is not None:
        yield "kernel", found.kernel if found.fallback is None else f"{found.kernel} operations: {found.fallback}"
    if found.threads is not None:
        yield "threads", f"{found.threads} of torch's, {found.cores} cores"
    for device, name in found.devices.items():
        yield device, f"{name}: {ELSEWHERE[device]}" if name else "not available"
    if installed := [extra.name for extra in found.extras if not extra.missing]:
        yield "extras", ", ".join(installed)
    if missing := [extra for extra in found.extras if extra.missing]:
        yield "not installed", ", ".join(extra.name for extra in missing) + f"; e.g. pip install 'hookscope[{missing[0].name}]'"


# What is another than on a CPU.
ELSEWHERE = {
    "CUDA": "watched by torch operations, as the native kernel reads CPU tensors only",
    "MPS": "watched by torch operations in float32, as there is no float64: counts are exact up to 16,777,216",
}
