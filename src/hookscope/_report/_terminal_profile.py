"""The gradient by depth in the terminal: one bar a leaf module, the first steps above the last."""

from __future__ import annotations

import math

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ._curve import narrowed
from ._glyphs import GREY, Glyphs
from ._view import Curve, DepthView
from ._words import number

WIDEST = 3  # columns a bar may take where there are few modules


def profile(view: DepthView, glyphs: Glyphs, width: int) -> RenderableType:
    """Both bars with the values at their two ends."""
    names = max(len(view.first_steps), len(view.last_steps))
    room = max(8, width - names - 26)
    points = min(len(view.modules), room)
    repeat = max(1, min(WIDEST, room // points))
    grid = Table.grid(padding=(0, 1))
    for _ in range(4):
        grid.add_column(no_wrap=True)
    for when, curve in ((view.first_steps, view.first), (view.last_steps, view.last)):
        start, end = _ends(curve)
        grid.add_row(f"  {glyphs.spelt(when)}", start, glyphs.bar(narrowed(curve.heights, points), repeat=repeat), end)
    grid.add_row("", "", _names(view, points * repeat, glyphs), "")
    return grid


def _ends(curve: Curve) -> tuple[Text, Text]:
    present = [value for value in curve.values if value is not None]
    first, last = (present[0], present[-1]) if present else (math.nan, math.nan)
    return Text(number(first), justify="right"), Text(number(last))


def _names(view: DepthView, room: int, glyphs: Glyphs) -> Text:
    """The first and the last module under the ends of the bars, as far as there is room."""
    first, last = view.modules[0], view.modules[-1]
    gap = room - len(first) - len(last)
    words = f"{first}{' ' * gap}{last}" if gap >= 2 else f"{first} {glyphs.spelt('→')} {last}"
    return Text(words, style=GREY, overflow="ellipsis", no_wrap=True)
