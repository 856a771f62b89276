"""watch an unmodified training script: every model it trains is found and recorded

    hookscope run train.py --epochs 3
    hookscope run --to runs/base --every 10 --select "encoder.**" train.py --epochs 3
    hookscope run -m package.train
    hookscope run --locate train.py
    torchrun --nproc-per-node 2 -m hookscope run train.py

The script sees its own arguments, and ends with its own output and exit status; what hookscope has to say goes to stderr.
Options of hookscope stand before the script. With --locate it is run a second time where the first run shows that a value went bad
and not at which line: from the same seeds, its output on stderr, up to that step, each operation watched; the exit status is the first's.
"""

from __future__ import annotations

import argparse
import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .._core._errors import RunExistsError, UsageError
from .._core._outcome import process_outcome
from .._core._stderr import heard
from ._after_import import after_import
from ._chance import begin_from, take_down
from ._script import leave_as_interrupted, run_module, run_script
from ._twice import Again, run_twice

if TYPE_CHECKING:
    from .._record import RunWriter
    from .._watch import Discovery


KEPT = ("facts", "batch", "full", "off")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--to", metavar="DIR", help="directory of the run (default: runs/SCRIPT-1, -2, ...)")
    parser.add_argument(
        "--every", type=int, metavar="N", help="record each N-th step, whatever it costs (default: what the budget pays for)"
    )
    parser.add_argument(
        "--budget", type=float, default=0.02, metavar="SHARE", help="of the training's time that may be spent (default: 0.02)"
    )
    parser.add_argument(
        "--select", action="append", metavar="SEL", help="what to record, e.g. 'encoder.**' or '~*.dropout'; may be repeated"
    )
    parser.add_argument("--raise", dest="raises", action="store_true", help="stop the script at a finding of severity error")
    parser.add_argument("--grad-norm-threshold", type=float, metavar="X", help="a global gradient norm that is too much")
    parser.add_argument("--incidents", default="facts", metavar="WHAT", help="what an incident holds: facts (default), batch, full, off")
    parser.add_argument("--locate", action="store_true", help="run it once more where a bad value has no line yet")
    parser.add_argument("--overwrite", action="store_true", help="replace the run that is there")
    parser.add_argument("--resume", action="store_true", help="go on with the run that is there")
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")
    parser.add_argument("-m", dest="module", action="store_true", help="the script is a module's name, as in python -m")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="script.py ...", help="the script and its own arguments")


def run(args: argparse.Namespace) -> int:
    """Watch it, and leave as it leaves."""
    if not args.command:
        raise UsageError("there is no script to run: hookscope run [options] script.py [its arguments]")
    script, *rest = args.command
    if not args.module and not os.path.isfile(script):
        raise UsageError(f"cannot run {script!r}: there is no such file; options of hookscope stand before the script")
    if args.locate:
        return run_twice(args, args.to or free_directory(script, module=args.module))
    watching = _Watching(args, script, Again.told())
    # Registered first, so called last: after what the script leaves to run at exit.
    atexit.register(leave_as_interrupted)
    atexit.register(lambda: _aloud(watching.end))
    after_import("torch", lambda: _aloud(watching.start))
    return (run_module if args.module else run_script)(script, rest)


def _aloud(part: Callable[[], None]) -> None:
    """What fails here is told in a line, and is nothing to the script."""
    try:
        part()
    except Exception as error:  # noqa: BLE001  # whatever it is
        if heard():
            print(f"hookscope: not watched to its end: {type(error).__name__}: {error}", file=sys.stderr)


class _Watching:
    """The run of one script, from before its first line to after its last."""

    def __init__(self, args: argparse.Namespace, script: str, again: Again | None = None) -> None:
        from importlib.metadata import PackageNotFoundError, version

        from .._core._select import describe, select
        from .._record import Meta, RunWriter

        if not 0 < args.budget <= 1:
            raise UsageError(f"--budget {args.budget} is no share of a training's time: give a number above 0, at most 1; 0.02 is 2 %")
        if args.every is not None and args.every < 1:
            raise UsageError(f"--every {args.every} is no schedule: give a whole number of steps, 1 or more")
        if args.grad_norm_threshold is not None and not args.grad_norm_threshold > 0:
            raise UsageError(f"--grad-norm-threshold {args.grad_norm_threshold:g} is no limit: give a norm above 0")
        if args.incidents not in KEPT:
            raise UsageError(f"--incidents {args.incidents} is unknown: choose one of {', '.join(KEPT)}")
        self.args = args
        self.selection = select(*(args.select or ["**"]))
        self.discovery: Discovery | None = None
        self._pid = os.getpid()
        try:
            torch = version("torch")
        except PackageNotFoundError:
            torch = ""
        text = describe(self.selection)
        meta = Meta(
            torch=torch,
            selections=(text,) if isinstance(text, str) else tuple(text),
            every=args.every or 1,
            settings={
                "command": args.command,
                "module": args.module,
                "budget": args.budget if args.every is None else None,
                "grad_norm_threshold": args.grad_norm_threshold,
            },
        )
        self.to = args.to or free_directory(script, module=args.module)
        # From the root on, since the script may change directories.
        try:
            self.writer: RunWriter = RunWriter(os.path.abspath(self.to), meta, overwrite=args.overwrite, resume=args.resume, beside=True)
        except RunExistsError:
            raise RunExistsError(f"there is a run in {self.to} already: --resume goes on with it, --overwrite replaces it") from None
        if again is not None:
            (begin_from if again.second else take_down)(Path(again.chance))

    def start(self) -> None:
        """Torch has just been imported by the script."""
        from .._watch import Settings, discover

        args = self.args
        settings = Settings(
            self.selection,
            every=args.every,
            budget=args.budget,
            on_finding="raise" if args.raises else "ignore" if args.quiet else "warn",
            grad_norm_threshold=args.grad_norm_threshold,
            incidents=args.incidents,
        )
        self.discovery = discover(settings, self.writer)

    def end(self) -> None:
        """The script is over, however it ended."""
        if os.getpid() != self._pid:
            return
        if self.discovery is None:
            self.writer.close(process_outcome())
        else:
            self.discovery.close()
        if not self.args.quiet and heard() and self.writer.meta.rank == 0:
            self._report()

    def _report(self) -> None:
        from .._record import Run
        from .._rules import diagnose

        found = diagnose(Run(self.writer.path))
        unmatched = self.discovery.unmatched() if self.discovery is not None else None
        lines = [f"hookscope: {found.steps} step(s) recorded in {self.to}: {found.verdict}"]
        if not found.steps:
            lines = [f"hookscope: nothing was recorded in {self.to}: {unmatched or 'no model with parameters was trained'}"]
        elif unmatched:
            lines.append(f"  {unmatched}")
        lines += [f"  {finding.headline}" for finding in found.at_least("warning")[:3]]
        lines.append(f"  see it: hookscope show {self.to}")
        print("\n".join(lines), file=sys.stderr)


def free_directory(script: str, *, module: bool) -> str:
    """Where the next run of this script goes."""
    stem = script.rpartition(".")[2] if module else Path(script).stem
    if "MASTER_ADDR" in os.environ:  # one of several processes, which must agree: they have a parent in common
        return f"runs/{stem}-of-{os.getppid()}"
    n = 1
    while os.path.exists(f"runs/{stem}-{n}"):
        n += 1
    return f"runs/{stem}-{n}"
