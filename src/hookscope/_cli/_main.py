"""The command `hookscope`: finds the verb, runs it, and turns what went wrong into one line and an exit status.

0 done, 1 a diagnosis that fails, 2 wrong use, 3 a run that cannot be read, 130 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from .. import __version__
from .._core._errors import HookscopeError, RunUnreadableError, UsageError
from ._verbs import VERBS, Verb, word

WRONG_USE, UNREADABLE, INTERRUPTED, BROKEN_PIPE = 2, 3, 130, 141


class Parser(argparse.ArgumentParser):
    """Tells of wrong use by an error of our own, so that it is one line like every other."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; `argv` defaults to what was typed.

    >>> main(["--version"])
    hookscope 0.1.0
    0
    """
    try:
        status = _dispatch(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout is not None:  # closed by who started the program
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except HookscopeError as problem:
        print(f"hookscope: {problem}", file=sys.stderr)
        return UNREADABLE if isinstance(problem, RunUnreadableError) else WRONG_USE
    return status


def _dispatch(argv: list[str]) -> int:
    if argv and not argv[0].startswith("-"):
        _check_verb(argv[0])
    parser = _parser()
    args = parser.parse_args(argv)
    if args.version:
        print(f"hookscope {__version__}")
        return 0
    if args.verb is None:
        parser.print_help()
        return 0
    return next(verb for verb in VERBS if word(verb) == args.verb).run(args)


def _check_verb(typed: str) -> None:
    known = [word(verb) for verb in VERBS]
    if typed not in known:
        near = difflib.get_close_matches(typed, known, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"unknown verb {typed!r}: {hint}choose one of {', '.join(known)}")


def _parser() -> Parser:
    parser = Parser(prog="hookscope", description="See inside PyTorch training, and why it goes wrong.", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)
    for verb in VERBS:
        verb.arguments(_add(verbs, verb))
    return parser


def _add(verbs: argparse._SubParsersAction[Parser], verb: Verb) -> Parser:
    summary = verb.__doc__.strip().splitlines()[0]
    return verbs.add_parser(
        word(verb), help=summary, description=verb.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )


def _drop_output() -> None:
    """Point stdout at nothing: the interpreter flushes it once more at exit, and would complain."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
