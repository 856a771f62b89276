"""Two analyses side by side: what a training, or other data, has changed in each layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..._core._errors import UsageError
from ._analysis import Analysis
from ._layer import Layer
from ._view import numbers, share, text

SHOWN = ("dead", "dormant", "zero", "saturated", "rms", "kurtosis", "effective_rank")
_SHARES = ("dead", "dormant", "zero", "saturated")


@dataclass(frozen=True, slots=True)
class Change:
    """One layer in both. `before` and `after` hold the numbers of the table.

    `shift` is the root mean square, over units, of the change of a unit's mean in units of its standard deviation before; `died` and
    `woke` are the units that are dead in one of the two only.
    """

    layer: str
    before: dict[str, float]
    after: dict[str, float]
    shift: float
    died: tuple[int, ...]
    woke: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Changes, largest shift first; `only_before` and `only_after` are layers that the other does not have."""

    changes: tuple[Change, ...]
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()

    def __getitem__(self, layer: str) -> Change:
        """The change of one layer."""
        for change in self.changes:
            if change.layer == layer:
                return change
        raise UsageError(f"no layer {layer!r} in both analyses: they share {', '.join(c.layer for c in self.changes[:4])}")

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, padding=(0, 1), pad_edge=False)
        for i, head in enumerate(("layer", "shift", "died", "woke", *SHOWN)):
            table.add_column(head, justify="right" if i else "left", no_wrap=True)
        for change in self.changes:
            moved = [_arrow(name, change.before[name], change.after[name]) for name in SHOWN]
            table.add_row(change.layer, text(change.shift), str(len(change.died)), str(len(change.woke)), *moved)
        console = Console(width=160, color_system=None, force_terminal=False, legacy_windows=False, _environ={})
        with console.capture() as captured:
            console.print(table)
        lines = [line.rstrip() for line in captured.get().splitlines()]
        for when, names in (("before", self.only_before), ("after", self.only_after)):
            lines += [f"only {when}: {', '.join(names)}"] if names else []
        return "\n".join(lines)


def compare(before: Analysis, after: Analysis) -> Comparison:
    """The changes from one to the other."""
    later = {layer.name: layer for layer in after.layers}
    names = {layer.name for layer in before.layers}
    changes = [_change(layer, later[layer.name]) for layer in before.layers if layer.name in later and layer.same_as is None]
    order = sorted(changes, key=lambda c: -1.0 if math.isnan(c.shift) else c.shift, reverse=True)
    return Comparison(tuple(order), tuple(sorted(names - later.keys())), tuple(sorted(later.keys() - names)))


def _change(a: Layer, b: Layer) -> Change:
    if a.units != b.units:
        raise UsageError(f"{a.name} has {a.units} units before and {b.units} after: these are two models")
    deviation = np.sqrt(a.stats.m2 / np.maximum(a.stats.n, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = np.where(b.stats.mean == a.stats.mean, 0.0, (b.stats.mean - a.stats.mean) / deviation)
    known = moved[np.isfinite(moved)]
    shift = float(np.sqrt((known**2).mean())) if len(known) else math.nan
    died, woke = (tuple(map(int, np.flatnonzero(x & ~y))) for x, y in ((b.dead, a.dead), (a.dead, b.dead)))
    return Change(a.name, numbers(a), numbers(b), shift, died, woke)


def _arrow(name: str, before: float, after: float) -> str:
    write = share if name in _SHARES else text
    one, other = write(before), write(after)
    return one if one == other else f"{one} → {other}"
