"""Runs a script as `python script.py` or `python -m package.module` would: same argv, same `__main__`, same exit."""

from __future__ import annotations

import builtins
import os
import runpy
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

from .._core._errors import UsageError


def run_script(path: str, args: list[str]) -> None:
    """Run the file as `__main__`; it stays `__main__` afterwards, for what it left to run at exit."""
    full = os.path.abspath(path)
    try:
        source = Path(full).read_bytes()
    except OSError as problem:
        raise UsageError(f"cannot read the script {path!r}: {problem.strerror}") from None
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=full, __builtins__=builtins, __loader__=SourceFileLoader("__main__", full), __cached__=None, __annotations__={}
    )
    sys.argv[:] = [path, *args]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(full))
    sys.modules["__main__"] = main
    _as_the_program(lambda: exec(compile(source, full, "exec"), main.__dict__))  # noqa: S102  # running the user's script is the point


def run_module(name: str, args: list[str]) -> None:
    """Run a module as `python -m` does."""
    sys.argv[:] = [name, *args]
    sys.path[0] = os.getcwd()
    _as_the_program(lambda: runpy.run_module(name, run_name="__main__", alter_sys=True))


def _as_the_program(run: Callable[[], object]) -> None:
    """An exception that nobody catches is reported as python would, without our frames, and ends the program with status 1."""
    try:
        run()
    except Exception as error:  # noqa: BLE001  # whatever the program raises
        trace = _theirs(error.__traceback__)
        error.__traceback__ = trace
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error, trace)
        raise SystemExit(1) from None


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the program's first frame on."""
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace
