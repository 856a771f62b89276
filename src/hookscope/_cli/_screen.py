"""The screen: a picture written to standard output as wide as it is, in colour only where a person sees it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

PIPED_WIDTH = 100


def show(*pictures: RenderableType) -> None:
    """Write them one below the other.

    Without a terminal, or with NO_COLOR set, there are no escape codes at all; FORCE_COLOR asks for them nevertheless. The width is
    COLUMNS, else the terminal's, else 100.
    """
    from rich.console import Console

    console = Console(color_system=None if _plain() else "auto", width=_width(), highlight=False, legacy_windows=False)
    with console.capture() as captured:
        for picture in pictures:
            console.print(picture)
    # Written here and not by rich, which answers a broken pipe by leaving the program with status 1.
    write("".join(line.rstrip(" \n") + "\n" for line in captured.get().splitlines()))


def write(text: str) -> None:
    """Write text to standard output; a name in it that the terminal's encoding lacks is escaped, and does not end the report."""
    if sys.stdout is None:
        return
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def _plain() -> bool:
    asked = bool(os.environ.get("FORCE_COLOR"))
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb" or not (_at_terminal() or asked)


def _at_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _width() -> int | None:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    return None if _at_terminal() else PIPED_WIDTH
