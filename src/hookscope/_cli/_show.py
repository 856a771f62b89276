"""show a recorded run: the verdict, the findings, and every module with its numbers and curves

    hookscope show runs/base
    hookscope show runs/base --step 12 --select "encoder.**"

The numbers are those of the step at which the first error begins, or without an error the last seen, unless --step says otherwise.
"""

from __future__ import annotations

import argparse


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("path", metavar="RUN", help="the run's directory")
    parser.add_argument("--step", type=int, metavar="N", help="the step whose numbers to show")
    parser.add_argument("--depth", type=int, metavar="D", help="levels of modules (default: as many as about 60 rows hold)")
    parser.add_argument("--select", metavar="SEL", help="only these modules, e.g. 'encoder.*' or 'h[3:6]'")


def run(args: argparse.Namespace) -> int:
    """Show it."""
    from .._core._errors import UsageError
    from .._record import Run
    from .._report import Picture, build
    from .._rules import diagnose
    from ._screen import show

    if args.depth is not None and args.depth < 0:
        raise UsageError(f"--depth {args.depth} is below the model itself: give 0 for the model alone, 1 for its children, and so on")
    recorded = Run(args.path)
    view = build(recorded, diagnose(recorded), step=args.step, select=args.select)
    show(Picture(view, depth=args.depth))
    return 0
