"""A comparison as text of at most 100 columns or so: the verdict, then the sites around what matters."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from ._measure import Distance
from ._row import SiteDifference

if TYPE_CHECKING:
    from ._comparison import Comparison

SHOWN = 40
WIDTH = 110
_MARKS = {"equal": " ", "rounding": " ", "inherited": "·", "added": "✗", "unknown": "?"}


def table(found: Comparison) -> str:
    """Lines; with many sites those without a difference worth seeing are counted instead."""
    rows = _chosen(found)
    width = min(46, max([len(_place(row)) for row in rows], default=4))
    head = f"  {'site':<{width}}  {'class':<18} {'inputs':>8} {'outputs':>8} {'added':>8} {'rounding':>8}  status"
    lines = [*textwrap.wrap(found.verdict, WIDTH, break_on_hyphens=False), "", head, *(_line(row, width) for row in rows)]
    left = len(found.sites) - len(rows)
    lines += [f"  and {left} more sites, none of which adds anything"] if left else []
    bad = [row for row in found.parameters if not row.agrees]
    lines += [f"  {row.sentence}" for row in bad[:8]]
    lines += [f"  and {len(bad) - 8} more parameters or buffers differ"] if len(bad) > 8 else []
    lines += [f"  {row.sentence}" for row in found.gradients if row.diverges][:8]
    lines += [f"  note: {note}" for note in found.notes]
    return "\n".join(lines)


def _chosen(found: Comparison) -> list[SiteDifference]:
    if len(found.sites) <= SHOWN:
        return list(found.sites)
    important = [row for row in found.sites if row.status in ("added", "unknown")]
    around = found.sites.index(found.first) if found.first in found.sites else len(found.sites)
    near = found.sites[max(0, around - 6) : around + 6]
    kept = {id(row) for row in (*important[: SHOWN - 12], *near)}
    return [row for row in found.sites if id(row) in kept]


def _line(row: SiteDifference, width: int) -> str:
    name = _place(row)
    name = name if len(name) <= width else "…" + name[1 - width :]
    cells = [number(row.inputs), number(row.total), number(row.added), f"{row.limit:.1e}"]
    return f"{_MARKS[row.status]} {name:<{width}}  {row.module_class[:18]:<18} " + " ".join(f"{c:>8}" for c in cells) + f"  {row.status}"


def _place(row: SiteDifference) -> str:
    return f"{row.a}@{row.call}" if row.call else row.a


def number(far: Distance | None) -> str:
    """`0`, `2.4e-07`, `NaN` where only one side has one, `~` before what was estimated, `-` for what is not known."""
    if far is None:
        return "-"
    if far.only_a + far.only_b:
        return "NaN/Inf"
    return "0" if far.exact else f"{'~' if far.estimated else ''}{far.relative:.1e}"
