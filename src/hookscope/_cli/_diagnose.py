"""diagnose a recorded run: what went wrong, where, why, and what to do; the exit status is for CI

    hookscope diagnose runs/base
    hookscope diagnose runs/base --json --fail-on warning

Exit status: 0 nothing at or above --fail-on, 1 something, 2 wrong use, 3 a run that cannot be read.
"""

from __future__ import annotations

import argparse

LEVELS = ("error", "warning", "never")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("path", metavar="RUN", help="the run's directory")
    parser.add_argument("--json", action="store_true", help="the diagnosis as JSON (format 1)")
    parser.add_argument("--fail-on", choices=LEVELS, default="error", help="exit with 1 from this severity on (default: error)")


def run(args: argparse.Namespace) -> int:
    """Diagnose it."""
    from .._record import Run
    from .._report import diagnosis_json
    from .._rules import diagnose
    from ._screen import show, write

    recorded = Run(args.path)
    diagnosis = diagnose(recorded)
    if args.json:
        write(diagnosis_json(diagnosis) + "\n")
    else:
        from .._report import Picture, build

        show(Picture(build(recorded, diagnosis), tree=False))
    return int(args.fail_on != "never" and len(diagnosis.at_least(args.fail_on)) > 0)
