"""A bar on the terminal while a dataset goes by; nothing where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(asked: bool | None, batches: int | None) -> Iterator[Callable[[], None]]:
    """Gives the function to call after each batch."""
    if asked is False or (asked is None and not (sys.stderr is not None and sys.stderr.isatty())):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("extracting"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("batches"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task("", total=batches)
        yield lambda: bar.advance(task)
