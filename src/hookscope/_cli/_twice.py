"""`hookscope run --locate`: where the first run of a script shows that something went bad, and not at which line, it is run once more."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._core._errors import RunUnreadableError, UsageError
from .._core._finding import Finding
from .._record import Run
from .._record._journal import Journal

AGAIN = "HOOKSCOPE_RUN_AGAIN"  # tells the process of either run what to do; it is gone before the script begins
_RULES = frozenset({"nonfinite-forward", "nonfinite-loss", "nonfinite-backward", "nonfinite-weight"})


@dataclass(frozen=True)
class Again:
    """What a process is told: the file for the generators' states, and whether it is the second run, which begins from them."""

    chance: str
    second: bool = False

    @classmethod
    def told(cls) -> Again | None:
        """By the process that runs the script twice."""
        text = os.environ.pop(AGAIN, None)
        if text is None:
            return None
        return cls(**json.loads(text))


def run_twice(args: argparse.Namespace, to: str) -> int:
    """Run the script, and again if that can say more; the status is that of the first run."""
    if args.resume:
        raise UsageError("--locate runs the script twice, from its start: leave it out with --resume")
    if "MASTER_ADDR" in os.environ:
        raise UsageError(
            "--locate cannot run one of several processes again: leave it out; then, if step 12 is the first that may have gone bad, "
            "run all of them once more with HOOKSCOPE_ARMED=12 in the environment and --to another directory: "
            "each rank names what it sees from there on"
        )
    hashes = os.environ.get("PYTHONHASHSEED", str(random.randrange(2**32)))  # noqa: S311  # nothing is to be kept secret
    with tempfile.TemporaryDirectory() as scratch:
        first = Again(f"{scratch}/chance.json")
        status = subprocess.call(_command(args, to), env=_environment(first, PYTHONHASHSEED=hashes))  # noqa: S603  # the user's own
        if (steps := _steps_to_look_at(to)) is not None:
            from .._watch._armed import Armed

            found = Path(scratch, "found.jsonl")
            armed = Armed(steps[0], to=str(found), stop=True, last=steps[1]).as_environment()
            _say(args, f"the script runs a second time, to name the line of what went bad at step {steps[0]}; its output, if any, follows")
            again = _environment(Again(first.chance, second=True), PYTHONHASHSEED=hashes, TORCH_COMPILE_DISABLE="1", **armed)
            _second(args, f"{scratch}/run", again)
            _say(args, _join(to, f"{scratch}/run", found))
    return status if status >= 0 else 128 - status


def _second(args: argparse.Namespace, to: str, environment: Mapping[str, str]) -> None:
    """The same program, every step recorded; what it prints is no output of this one."""
    command = _command(
        argparse.Namespace(**{**vars(args), "every": 1, "quiet": True, "raises": False, "overwrite": False, "incidents": "off"}), to
    )
    where = sys.stderr.fileno() if sys.stderr is not None else subprocess.DEVNULL
    subprocess.call(command, env=environment, stdin=subprocess.DEVNULL, stdout=where)  # noqa: S603  # as above


def _command(args: argparse.Namespace, to: str) -> list[str]:
    options = ["--to", to, "--budget", str(args.budget), "--incidents", args.incidents]
    options += ["--every", str(args.every)] if args.every is not None else []
    options += [part for chosen in args.select or () for part in ("--select", chosen)]
    options += ["--grad-norm-threshold", str(args.grad_norm_threshold)] if args.grad_norm_threshold is not None else []
    flags = {"--raise": args.raises, "--overwrite": args.overwrite, "--quiet": args.quiet, "-m": args.module}
    return [sys.executable, "-m", "hookscope", "run", *options, *(name for name, given in flags.items() if given), *args.command]


def _environment(again: Again, **more: str) -> dict[str, str]:
    return {**os.environ, **more, AGAIN: json.dumps(asdict(again))}


def _diagnosed(to: str) -> tuple[Run, list[Finding]] | None:
    from .._rules import diagnose

    try:
        run = Run(to)
    except RunUnreadableError:  # it ended before anything was recorded
        return None
    return run, [f for f in diagnose(run) if f.rule in _RULES and f.severity == "error"]


def _steps_to_look_at(to: str) -> tuple[int, int] | None:
    """From the first step that may hold the origin of the first finding to the last; None where all is well, or named."""
    seen = _diagnosed(to)
    if seen is None or not seen[1] or seen[1][0].source is not None:
        return None
    step = seen[1][0].first_step
    before = max((int(s) for s in seen[0].steps if s < step), default=-1)
    return before + 1, step + 1


def _join(to: str, second: str, found: Path) -> str:
    """Write what the second run has shown into the first one; what to say."""
    seen = _diagnosed(to)
    events = [json.loads(line) for line in found.read_text().splitlines()] if found.is_file() else []
    if not events or seen is None:
        return "the second run did not show where it began"
    finding, event = seen[1][0], events[0]
    differences = _differences(seen[0], second, finding.first_step)
    notes = [f"found by a second run of the script, at step {event['step']}", *differences]
    journal = Journal(Path(to) / "events.jsonl")
    journal.append({**event, "event": "origin", "step": finding.first_step, "second_run": True, "exact": not differences, "notes": notes})
    journal.close()
    named = _diagnosed(to)
    return named[1][0].headline if named is not None and named[1] else "the second run did not show where it began"


def _differences(first: Run, second: str, step: int) -> list[str]:
    """Why the second run may not have been the first one over again."""
    try:
        same = _losses(first, step) == _losses(Run(second), step, like=first)
    except RunUnreadableError:
        return ["nothing of it was recorded"]
    return [] if same else ["its losses before that were others: the script does not set every seed"]


def _losses(run: Run, until: int, *, like: Run | None = None) -> dict[str, list[Any]]:
    steps = {int(s) for s in (like or run).steps if s < until}
    tables = {site.name: run[site.name, "mean"] for site in run.sites if site.kind == "loss"}
    return {name: [(int(s), v) for s, v in zip(t.steps, t.values, strict=True) if int(s) in steps] for name, t in tables.items()}


def _say(args: argparse.Namespace, text: str) -> None:
    if not args.quiet and sys.stderr is not None:
        print(f"hookscope: {text}", file=sys.stderr, flush=True)
