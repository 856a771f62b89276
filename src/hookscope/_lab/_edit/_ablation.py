"""What `ablate` found: sites or units by their effect."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Effect:
    """`value` is the metric with the site, or one unit of it, edited; `effect` that minus the metric without any edit."""

    site: str
    unit: int | None
    value: float
    effect: float


@dataclass(frozen=True, repr=False)
class Ablation:
    """Sites or units ranked by the size of their effect, largest first; what is not finite comes before all.

    `baseline` is the metric without any edit. It can be indexed and iterated over; each row has `site`, `unit`, `value` and `effect`.

    >>> import torch
    >>> import hookscope as hs
    >>> model = torch.nn.Sequential(torch.nn.Identity())
    >>> found = hs.ablate(model, "0", lambda model, x: model(x).sum(), [torch.tensor([[1.0, 3.0]])], units="each")
    >>> found[0].unit, found[0].effect, found.baseline
    (1, -3.0, 4.0)
    """

    baseline: float
    rows: tuple[Effect, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Effect]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> Effect:
        return self.rows[index]

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame; needs pandas."""
        import pandas as pd

        columns = ("site", "unit", "value", "effect")
        frame: pd.DataFrame = pd.DataFrame({name: [getattr(row, name) for row in self.rows] for name in columns})
        return frame

    def __repr__(self) -> str:
        rows = [(_place(row), f"{row.value:.6g}", f"{row.effect:+.6g}") for row in self.rows[:_SHOWN]]
        table = [("site", "metric", "effect"), *rows]
        widths = [max(len(line[i]) for line in table) for i in range(3)]
        lines = [f"{line[0]:<{widths[0]}}  {line[1]:>{widths[1]}}  {line[2]:>{widths[2]}}" for line in table]
        more = [f"and {len(self.rows) - _SHOWN} more"] if len(self.rows) > _SHOWN else []
        return "\n".join([f"without any edit: {self.baseline:.6g}", *lines, *more])


def ranked(baseline: float, rows: list[Effect]) -> Ablation:
    """The rows in the order of their effects."""
    return Ablation(baseline, tuple(sorted(rows, key=lambda row: math.inf if math.isnan(row.effect) else abs(row.effect), reverse=True)))


def _place(row: Effect) -> str:
    return row.site if row.unit is None else f"{row.site} unit {row.unit}"
