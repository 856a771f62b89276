"""compare two recorded runs: the step and site at which they part, and what differs by more than its own noise

    hookscope compare runs/base runs/wider
    hookscope compare runs/base runs/again --json --fail-on significant

Exit status: 0 equal to the last bit (with --fail-on significant: no site differs by more than 3 times its noise), 1 not so, 2 wrong use,
3 a run that cannot be read.
"""

from __future__ import annotations

import argparse

LEVELS = ("any", "significant", "never")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("a", metavar="A", help="a run's directory")
    parser.add_argument("b", metavar="B", help="the other run's directory")
    parser.add_argument("--json", action="store_true", help="the comparison as JSON (format 1)")
    parser.add_argument("--select", metavar="SEL", default="**", help="only these sites, e.g. 'encoder.*:param'")
    parser.add_argument("--fail-on", choices=LEVELS, default="any", help="exit with 1 on any difference (default), or on one above noise")


def run(args: argparse.Namespace) -> int:
    """Compare them."""
    from .._compare import compare
    from ._screen import write

    found = compare(args.a, args.b, select=args.select)
    write((found.to_json() if args.json else str(found)) + "\n")
    return int({"any": not found.same, "significant": bool(found.significant), "never": False}[args.fail_on])
