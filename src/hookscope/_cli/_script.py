"""Runs a script as `python script.py` or `python -m package.module` would: same argv, same `__main__`, same exit."""

from __future__ import annotations

import builtins
import os
import runpy
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

from .._core._errors import UsageError


def run_script(path: str, args: list[str]) -> NoReturn:
    """Run the file as `__main__`, and leave; it stays `__main__` afterwards, for what it left to run at exit."""
    full = os.path.join(os.getcwd(), path)  # noqa: PTH118  # a Path would drop the "./" that python keeps
    try:
        source = Path(full).read_bytes()
    except OSError as problem:
        raise UsageError(f"cannot read the script {path!r}: {problem.strerror}") from None
    main = _new_main()
    main.__dict__.update(__file__=full, __loader__=SourceFileLoader("__main__", full), __cached__=None)
    sys.argv[:] = [path, *args]
    _search_first(os.path.dirname(os.path.realpath(full)))
    # dont_inherit: the script's annotations are what its own `from __future__` lines say, not this file's
    _as_the_program(lambda: exec(compile(source, full, "exec", dont_inherit=True), main.__dict__))  # noqa: S102  # running the user's script is the point


def run_module(name: str, args: list[str]) -> NoReturn:
    """Run a module as `python -m` does, and leave."""
    _new_main()
    sys.argv[:] = ["-m", *args]
    _search_first(os.getcwd())
    # What `python -m` itself calls: unlike runpy.run_module it leaves the module in place as `__main__`.
    _as_the_program(lambda: runpy._run_module_as_main(name))  # type: ignore[attr-defined]  # what python -m itself calls


def leave_as_interrupted() -> None:
    """To be called last: a program that Ctrl-C has stopped ends by that signal, so that a shell's loop around it stops, too."""
    if getattr(sys, "last_type", None) is KeyboardInterrupt and os.name == "posix":
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def _new_main() -> ModuleType:
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    return main


def _search_first(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def _as_the_program(run: Callable[[], object]) -> NoReturn:
    """An exception that nobody catches is reported as python would, without our frames, and ends the program with status 1."""
    try:
        run()
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001  # whatever the program raises
        _flush()
        trace = _theirs(error.__traceback__)
        error.__traceback__ = trace
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error, trace)
        raise SystemExit(1) from None
    finally:
        _flush()
    raise SystemExit(0)


def _flush() -> None:
    """What the program printed goes before its traceback, and before what we have to say."""
    for stream in (sys.stderr, sys.stdout):
        with suppress(Exception):  # closed, or replaced by the program
            stream.flush()


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the program's first frame on; a script that cannot be compiled has none."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace
