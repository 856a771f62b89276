"""A finding in the terminal: what and where in one line, then the sentence, then evidence, causes and advice under small labels."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ._glyphs import GREY, STYLES, Glyphs
from ._view import FindingView

LABEL = 8


def finding(view: FindingView, glyphs: Glyphs) -> RenderableType:
    """One finding as a block."""
    grid = Table.grid(padding=(0, 1, 0, 0), expand=False)
    grid.add_column(width=LABEL, style=GREY, no_wrap=True)
    grid.add_column(width=1, style=GREY)
    grid.add_column(overflow="fold")
    for label, bullet, body in _parts(view, glyphs):
        grid.add_row(label, bullet, Text(glyphs.spelt(body), overflow="fold"))
    head = Table.grid(padding=(0, 0))
    head.add_column(width=4, style=GREY, no_wrap=True)
    head.add_column(overflow="fold")
    head.add_row(f"{view.number:>2}. ", _headline(view, glyphs))
    head.add_row("", Text(glyphs.spelt(view.message), overflow="fold"))
    return Group(head, Padding(grid, (0, 0, 0, 4)))


def _headline(view: FindingView, glyphs: Glyphs) -> Text:
    mark = f"{glyphs.marks[view.severity]} {view.severity}"
    phase = () if view.phase in view.where else (view.phase,)  # "in the optimizer · optimizer" says it twice
    place = "  " + " · ".join((view.where, *phase, view.steps))
    return Text.assemble((mark, STYLES[view.severity]), "  ", (view.rule, "bold"), glyphs.spelt(place), overflow="fold")


def _parts(view: FindingView, glyphs: Glyphs) -> Iterator[tuple[str, str, str]]:
    if view.source:
        yield "at", "", view.source
    if view.evidence:
        yield "evidence", "", " · ".join(f"{key} {value}" for key, value in view.evidence)
    for label, lines in (("likely", view.causes), ("do", view.advice)):
        for i, line in enumerate(lines):
            yield (label if i == 0 else ""), glyphs.bullet, line
    if view.explains:
        yield "explains", "", ", ".join(f"finding {number}" for number in view.explains)
