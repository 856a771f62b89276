"""What a run has seen, in the terminal: the coverage in a few lines, then what is missing and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from . import _words as words
from ._glyphs import ASCII, GREY, STYLES, UNICODE, Glyphs
from ._sight import Sight
from ._terminal_findings import finding

STYLE_OF = {"all seen": "healthy", "partly seen": "info", "nothing recorded": "nothing recorded"}


@dataclass(frozen=True, slots=True)
class SightPicture:
    """A Rich renderable.

    >>> from hookscope._report import Sight, SightPicture, text
    >>> print(text(SightPicture(Sight("runs/base", "finished", 9, 3, 3, 0, 4, 4, 4, (("output", 3), ("param", 4)))), width=70))
    ✓ all seen  runs/base
      modules     3 of 3 fired in the training
      parameters  4 of 4 trainable ones got gradients
      sites       3 output · 4 param
      cost        9 steps · finished
    """

    sight: Sight

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        glyphs, seen = _glyphs(options), self.sight
        yield Listing(STYLE_OF[seen.title], seen.title, seen.run, tuple(_lines(seen)))
        for each in seen.findings:
            yield Text()
            yield finding(each, glyphs)


@dataclass(frozen=True, slots=True)
class Listing:
    """A verdict, what it is about, and lines with a grey label each; `look` names the verdict's sign and colour. A Rich renderable."""

    look: str
    verdict: str
    about: str
    lines: tuple[tuple[str, str], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        glyphs = _glyphs(options)
        yield Text.assemble((f"{glyphs.marks[self.look]} {self.verdict}", STYLES[self.look]), "  ", (self.about, "bold"), overflow="fold")
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style=GREY, no_wrap=True)
        grid.add_column(overflow="fold")
        for label, line in self.lines:
            grid.add_row(label, Text(glyphs.spelt(line), overflow="fold"))
        yield Padding(grid, (0, 0, 0, 2))


def _glyphs(options: ConsoleOptions) -> Glyphs:
    return ASCII if options.ascii_only else UNICODE


def _lines(seen: Sight) -> Iterator[tuple[str, str]]:
    if seen.modules:
        elsewhere = f", {seen.evaluated:,} more in evaluation only" if seen.evaluated else ""
        yield "modules", f"{seen.fired:,} of {seen.modules:,} fired in the training{elsewhere}"
    if seen.parameters:
        frozen = seen.parameters - seen.trainable
        beside = f"; {frozen:,} more frozen" if frozen else ""
        yield "parameters", f"{seen.graded:,} of {seen.trainable:,} trainable ones got gradients{beside}"
    if seen.sites:
        yield "sites", " · ".join(f"{count:,} {kind}" for kind, count in seen.sites)
    yield "cost", " · ".join([words.recorded(seen.steps, seen.trained), *_cost(seen), seen.status])
    if not seen.steps:
        yield "note", "no step of a training was recorded: no watched model with parameters went forward and backward"
    if not seen.ended:
        yield "note", "the watch has not ended in this run: what it tells at its end, such as modules that were never called, is missing"
    if seen.unread_bytes:
        yield "note", f"{seen.unread_bytes:,} bytes at the end of a file, cut off within a write"


def _cost(seen: Sight) -> Iterator[str]:
    if seen.seconds is not None:
        yield words.seconds(seen.seconds)
    if seen.spent_seconds is not None:
        share = f" ({seen.spent_seconds / seen.seconds:.0%})" if seen.seconds else ""
        each = f", {words.number(1000 * seen.spent_seconds / seen.trained)} ms a step" if seen.trained else ""
        yield f"{words.seconds(seen.spent_seconds)} of it watching{share}{each}"
    if seen.size_bytes is not None:
        yield f"{words.size(seen.size_bytes)} recorded"
