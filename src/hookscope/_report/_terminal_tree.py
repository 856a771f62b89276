"""The module tree in the terminal: aligned numbers, a curve a row, columns left out from the least needed where it is narrow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ._curve import narrowed
from ._fold import Row, rows
from ._glyphs import GREY, STYLES, Glyphs
from ._view import ModuleView, View
from ._words import number, shape

NUMBER = 7
NAME_LEAST = 20
CURVE_LEAST, CURVE_MOST = 10, 48
LEGEND = (
    "rms of the output · grad: l2 norm of the gradient of all parameters in and below the module · "
    "upd/w: l2 norm of the update ÷ that of the weights · curve: log scale, each row its own (a factor ten at least), × is NaN or Inf"
)


@dataclass(frozen=True, slots=True)
class Widths:
    """Columns given to each part; 0 leaves it out."""

    mark: int
    name: int
    cls: int
    shape: int
    curve: int


def tree(view: View, glyphs: Glyphs, *, width: int, depth: int | None) -> Iterator[RenderableType]:
    """The tree and its legend."""
    assert view.tree is not None
    shown = rows(view.tree, depth=depth)
    widths = _widths(shown, width - 2, glyphs)
    grid = _grid(widths)
    for row in shown:
        grid.add_row(*_cells(row, widths, glyphs))
    yield Padding(grid, (0, 0, 0, 2))
    folded = " · ×n: n modules alike, folded into one; ~: their median" if any(row.about for row in shown) else ""
    yield Padding(Text(glyphs.spelt(LEGEND + folded), style=GREY), (0, 0, 0, 2))


def _widths(shown: Sequence[Row], room: int, glyphs: Glyphs) -> Widths:
    """What fits: first the name and the numbers, then a curve, the class, the shape; spare room goes to the curve."""
    mark = max((len(_mark(row.module, glyphs)) for row in shown), default=0)
    name = max(len(_name(row, glyphs)) for row in shown)
    spare = room - 3 * (NUMBER + 1) - (mark + 1 if mark else 0) - (CURVE_LEAST + 1)
    name = max(NAME_LEAST, min(name, spare)) if spare > NAME_LEAST else max(8, spare)
    spare -= name
    cls = max(5, *(len(row.module.cls) for row in shown))
    cls, spare = (cls, spare - cls - 1) if cls + 1 <= spare else (0, spare)
    sizes = max(6, *(len(shape(row.module.shape)) for row in shown))
    sizes, spare = (sizes, spare - sizes - 1) if sizes + 1 <= spare else (0, spare)
    return Widths(mark, name, cls, sizes, min(CURVE_MOST, CURVE_LEAST + max(0, spare)))


def _grid(widths: Widths) -> Table:
    grid = Table(box=None, padding=(0, 1, 0, 0), show_header=True, header_style=GREY, pad_edge=False, collapse_padding=True)
    if widths.mark:
        grid.add_column("", width=widths.mark, no_wrap=True)
    grid.add_column("module", width=widths.name, no_wrap=True, overflow="ellipsis")
    if widths.cls:
        grid.add_column("class", width=widths.cls, no_wrap=True, style=GREY)
    if widths.shape:
        grid.add_column("output", width=widths.shape, no_wrap=True, style=GREY)
    for title in ("rms", "grad", "upd/w"):
        grid.add_column(title, width=NUMBER, justify="right", no_wrap=True)
    grid.add_column("grad over steps" if widths.curve >= len("grad over steps") else "over steps", width=widths.curve, no_wrap=True)
    return grid


def _cells(row: Row, widths: Widths, glyphs: Glyphs) -> Iterator[Text]:
    module = row.module
    if widths.mark:
        yield Text(_mark(module, glyphs), style=STYLES[module.worst] if module.worst else "")
    yield _label(row, widths.name, glyphs)
    if widths.cls:
        yield Text(module.cls)
    if widths.shape:
        yield Text(glyphs.spelt(shape(module.shape)))
    for value in (module.output_rms, module.grad_norm, module.update_ratio):
        yield _value(value, glyphs, about=row.about)
    yield glyphs.bar(narrowed(module.gradient.heights, widths.curve)) if module.gradient else Text()


def _mark(module: ModuleView, glyphs: Glyphs) -> str:
    if module.worst is None:
        return ""
    more = "+" if len(module.marks) > 2 else ""
    return glyphs.marks[module.worst] + ",".join(map(str, module.marks[:2])) + more


def _value(value: float | None, glyphs: Glyphs, *, about: bool) -> Text:
    words = glyphs.spelt(number(value))
    if value is None:
        return Text(words, style=GREY)
    bad = not math.isfinite(value)
    return Text(("~" if about and len(words) < NUMBER else "") + words, style=STYLES["error"] if bad else "")


def _guides(row: Row, glyphs: Glyphs) -> str:
    branch, last, passing, nothing = glyphs.tree
    above = "".join(passing if more else nothing for more in row.guides[:-1])
    return above + (branch if row.guides[-1] else last) if row.guides else ""


def _notes(row: Row) -> str:
    module = row.module
    folded = f" ×{module.size}" if module.size > 1 else ""
    return folded + (f" (+{row.hidden:,} inside)" if row.hidden else "") + ("" if module.fired else " (never ran)")


def _name(row: Row, glyphs: Glyphs) -> str:
    return glyphs.spelt(_guides(row, glyphs) + row.module.name + _notes(row))


def _label(row: Row, width: int, glyphs: Glyphs) -> Text:
    """Guides and notes grey, the name plain; a name too long loses its middle, since its two ends tell it apart."""
    guides, notes = _guides(row, glyphs), glyphs.spelt(_notes(row))
    name, room = glyphs.spelt(row.module.name), max(3, width - len(guides) - len(notes))
    if len(name) > room:
        head = (room - 1) // 2
        name = name[:head] + glyphs.spelt("…") + name[len(name) - (room - 1 - head) :]
    return Text.assemble((guides, GREY), (name, "bold" if row.module.worst else ""), (notes, GREY))
