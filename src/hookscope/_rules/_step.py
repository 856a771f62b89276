"""One step of a run, laid out for the rules: what went in, what came out and in which order, what flowed back, what was updated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from .._core._site import Kind, Site
from .._core._stats import Stats
from .._record import Run


@dataclass(frozen=True, slots=True)
class Row:
    """The stats of one tensor at one site in one step."""

    site: Site
    micro: int
    call: int
    seq: int
    stats: Stats

    @property
    def nonfinite(self) -> bool:
        """Whether there is any NaN or Inf."""
        return self.stats.nan + self.stats.inf > 0

    @property
    def masked(self) -> bool:
        """Whether it looks like a legal mask: some -inf, no NaN, no +inf, and finite values besides."""
        return self.stats.inf > 0 and self.stats.nan == 0 and math.isfinite(self.stats.max)

    @property
    def bad(self) -> bool:
        """Non-finite, and not as a mask is."""
        return self.nonfinite and not self.masked

    @property
    def counted(self) -> dict[str, int]:
        """How many NaN, Inf and elements, as evidence."""
        return {name: int(getattr(self.stats, name)) for name in ("nan", "inf", "count")}

    @property
    def what(self) -> str:
        """`12 NaN and 3 Inf among 4,096 values`."""
        kinds = [f"{int(n):,} {name}" for n, name in ((self.stats.nan, "NaN"), (self.stats.inf, "Inf")) if n]
        return f"{' and '.join(kinds) or 'only finite values'} among {int(self.stats.count):,} values"


@dataclass(frozen=True, slots=True)
class StepRows:
    """All rows of one step, in order of micro-batch and execution."""

    step: int
    rows: tuple[Row, ...]

    def of(self, kind: Kind, micro: int | None = None, label: str = "") -> list[Row]:
        """The rows of a kind, in the order of execution."""
        return [r for r in self.rows if r.site.kind == kind and r.site.label == label and micro in (None, r.micro)]

    @property
    def micros(self) -> list[int]:
        """The micro-batches of the step, ascending."""
        return sorted({r.micro for r in self.rows if r.micro >= 0})

    @property
    def skipped(self) -> bool:
        """Whether a scaler or a guard in the loop left this step's update out."""
        return any(r.site.path == "skipped" and r.stats.sum > 0 for r in self.of("scalar"))

    def gradients(self) -> list[Row]:
        """Every row that a gradient reached: of outputs, of parameters (whatever the label), and the updates made from them."""
        return [r for r in self.rows if r.site.kind in ("output_grad", "param_grad", "update")]

    def parameter_gradients(self) -> list[Row]:
        """The gradients of parameters in the earliest state recorded: before clipping where that was recorded."""
        return next((rows for rows in (self.of("param_grad", label=at) for at in ("preclip", "local", "")) if rows), [])

    @property
    def harmed(self) -> bool:
        """Whether a non-finite value reached the loss, a gradient or an update; in a skipped step only a NaN loss counts."""
        losses = self.of("loss")
        if self.skipped:
            return any(r.stats.nan for r in losses)
        return any(r.nonfinite for r in [*losses, *self.gradients()])


def read_steps(run: Run, steps: Iterable[int]) -> Iterator[StepRows]:
    """These steps, one at a time."""
    sites = {site.id: site for site in run.sites}
    for step in steps:
        found = run.table.overview(step, step)
        places = zip(found.site.tolist(), found.micro.tolist(), found.call.tolist(), found.seq.tolist(), found.stats.tolist(), strict=True)
        rows = (Row(sites[site], micro, call, seq, Stats(*stats)) for site, micro, call, seq, stats in places)
        yield StepRows(step, tuple(sorted(rows, key=lambda r: (r.micro, r.seq))))


def sites_of(run: Run, *kinds: Kind, label: str = "") -> list[Site]:
    """The run's sites of these kinds."""
    return [site for site in run.sites if site.kind in kinds and site.label == label]


def recorded_steps(run: Run) -> list[int]:
    """The numbers of the steps the run holds, ascending."""
    return [int(step) for step in np.unique(np.asarray(run.steps))]
