"""An analysis as a picture in the terminal: findings, then the table."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ._analysis import Analysis
from ._view import View, view

ATTENTION = ("attention", "heads", "entropy", "relative", "sharpest head", "least logit", "largest logit")
STYLES = {"error": "bold color(160)", "warning": "bold color(130)", "info": "color(31)"}


def picture(analysis: Analysis) -> RenderableType:
    """The report as Rich draws it."""
    shown = view(analysis)
    parts: list[RenderableType] = [Text(shown.title, style="bold"), Text(shown.summary), *_findings(shown), Text(), _table(shown)]
    if shown.attention:
        parts += [Text(), _grid(ATTENTION, shown.attention)]
    if shown.blind:
        parts += [Text(), Text("not seen", style="bold"), *(Text(f"  {line}") for line in shown.blind)]
    return Group(*parts)


def text(analysis: Analysis, *, width: int = 120) -> str:
    """The picture as plain text."""
    console = Console(width=width, color_system=None, force_terminal=False, legacy_windows=False, _environ={})
    with console.capture() as captured:
        console.print(picture(analysis))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _findings(shown: View) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for finding in shown.findings:
        lines.append(Text.assemble((f"{finding.severity} ", STYLES[finding.severity]), (finding.rule, "bold"), f"  {finding.message}"))
        lines += [Text(f"    cause: {cause}") for cause in finding.causes[:2]] + [
            Text(f"    do: {advice}") for advice in finding.advice[:2]
        ]
    return lines


def _table(shown: View) -> Table:
    table = _grid(shown.heads, [])
    for row in shown.rows:
        table.add_row(*row.cells, style="bold" if row.marked else None)
    return table


def _grid(heads: tuple[str, ...], rows: list[tuple[str, ...]] | tuple[tuple[str, ...], ...]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
