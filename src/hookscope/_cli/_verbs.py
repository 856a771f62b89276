"""The verbs of the command line: each a module whose docstring is its help, with `arguments` to declare and `run` to act.

A verb's `run` returns the exit status. Importing a verb is cheap: what it needs, it imports when it runs.
"""

from __future__ import annotations

import argparse
from typing import Protocol, cast

from . import _compare, _demo, _diagnose, _doctor, _replay, _run, _show


class Verb(Protocol):
    """What a verb's module offers."""

    __name__: str
    __doc__: str

    def arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declare the arguments."""

    def run(self, args: argparse.Namespace, /) -> int:
        """Do it; the exit status."""


VERBS: tuple[Verb, ...] = tuple(cast("Verb", module) for module in (_run, _show, _diagnose, _compare, _replay, _demo, _doctor))


def word(verb: Verb) -> str:
    """What one types: the module's name without its underscore."""
    return verb.__name__.rpartition(".")[2].removeprefix("_")
