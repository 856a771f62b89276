"""The view as a picture in the terminal: verdict, findings worst first, gradient by depth, the module tree, what was not seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ._curve import narrowed
from ._glyphs import ASCII, GREY, STYLES, UNICODE, Glyphs
from ._terminal_findings import finding
from ._terminal_profile import profile
from ._terminal_tree import tree
from ._view import View
from ._words import number


@dataclass(frozen=True, slots=True)
class Picture:
    """A view laid out for a terminal of any width: a Rich renderable.

    `depth` limits the module tree (default: as deep as about 60 rows allow); `tree=False` leaves out the tree and the gradient by depth.

    >>> from hookscope._report import Facts, Picture, View, text
    >>> facts = Facts(steps=9, first_step=0, last_step=8, modules=1, sites=1, status="finished")
    >>> view = View("runs/base", "healthy", "healthy", "No rule found anything wrong in 9 steps.", "9 steps", facts)
    >>> print(text(Picture(view), width=60))
    ✓ healthy  runs/base
      No rule found anything wrong in 9 steps.
      9 steps
    """

    view: View
    depth: int | None = None
    tree: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        glyphs = ASCII if options.ascii_only else UNICODE
        yield from self._head(glyphs, options.max_width)
        for each in self.view.findings:
            yield Text()
            yield finding(each, glyphs)
        if self.tree and self.view.tree is not None:
            yield from self._modules(glyphs, options.max_width)
        if self.view.blindness:
            yield from self._blindness(glyphs)

    def _head(self, glyphs: Glyphs, width: int) -> Iterator[RenderableType]:
        style = STYLES[self.view.title]
        yield Text.assemble((f"{glyphs.marks[self.view.title]} {self.view.title}", style), "  ", (self.view.run, "bold"), overflow="fold")
        yield _indented(Text(glyphs.spelt(self.view.summary)))
        loss = self.view.loss
        if loss is not None:
            first, last = (number(value) for value in (self.view.facts.first_loss, self.view.facts.last_loss))
            yield _indented(Text.assemble("loss ", first, " ", glyphs.bar(narrowed(loss.heights, max(8, width - 26))), " ", last))
        yield _indented(Text(glyphs.spelt(self.view.cost), style=GREY))
        if self.view.incidents:
            yield _indented(Text(glyphs.spelt(self.view.incidents), style=GREY))

    def _modules(self, glyphs: Glyphs, width: int) -> Iterator[RenderableType]:
        if self.view.depth is not None:
            yield heading("gradient by depth", "rms at the output of each leaf module, in order of execution; one log scale", glyphs)
            yield profile(self.view.depth, glyphs, width)
        when = "last seen" if self.view.shown_step is None else f"at step {self.view.shown_step:,}"
        yield heading("modules", f"numbers {when}", glyphs)
        yield from tree(self.view, glyphs, width=width, depth=self.depth)

    def _blindness(self, glyphs: Glyphs) -> Iterator[RenderableType]:
        yield heading("not seen", "", glyphs)
        grid = Table.grid(padding=(0, 1))
        for line in self.view.blindness:
            grid.add_row(Text(f"  {glyphs.bullet}"), Text(glyphs.spelt(line), overflow="fold"))
        yield grid


def heading(title: str, words: str, glyphs: Glyphs) -> RenderableType:
    """A blank line and a title with a few grey words to it."""
    return Padding(Text.assemble((title, "bold"), ("  " + glyphs.spelt(words) if words else "", GREY)), (1, 0, 0, 0))


def _indented(text: Text) -> RenderableType:
    text.overflow = "fold"
    return Padding(text, (0, 0, 0, 2))


def text(picture: RenderableType, *, width: int = 100) -> str:
    """The picture as plain text without escape codes, in lines of at most `width` characters."""
    console = Console(width=width, color_system=None, force_terminal=False, legacy_windows=False, _environ={})
    with console.capture() as captured:
        console.print(picture)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
