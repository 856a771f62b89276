"""The steps in which non-finite values may have been born: those whose parameters were still clean, and the first whose were not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._core._site import Kind
from .._record import Run
from ._step import Row, StepRows, read_steps

FLOWING: tuple[Kind, ...] = ("output", "input")
HELD: tuple[Kind, ...] = ("output_grad", "param_grad", "loss", "update", "param")
MOST_STEPS = 200  # a run that is sick for longer says nothing new


@dataclass(frozen=True, slots=True)
class Birth:
    """A step to look at. `harmless` names the sites whose non-finite values earlier steps survived unharmed; `told` says that a second run
    has found what the models were given to be bad.
    """

    rows: StepRows
    harmless: frozenset[str]
    told: bool = False

    @property
    def step(self) -> int:
        """The number of the step."""
        return self.rows.step

    @property
    def weights_bad(self) -> bool:
        """Whether a parameter was non-finite before the forward used it."""
        return any(r.nonfinite for r in self.rows.of("param"))

    def bad(self, kind: Kind, micro: int | None = None) -> list[Row]:
        """The rows of a kind that are non-finite, neither as a mask is nor where it did no harm before."""
        return [r for r in self.rows.of(kind, micro) if r.bad and r.site.name not in self.harmless]

    def bad_batch(self, micro: int) -> list[Row]:
        """The inputs of a model itself that are non-finite, and not because another model, whose output they may be, was so before."""
        return [r for r in self.bad("input", micro) if r.site.path == "" and not self._comes_from_another(r)]

    def spoiled(self, micro: int) -> bool:
        """Whether a model was given what is bad: as its inputs show, or the second run tells where they were not read."""
        read = any(r.site.path == "" for r in self.rows.of("input", micro))
        told = self.told and not read and any(r.site.path == "" for r in self.bad("output", micro))
        return told or bool(self.bad_batch(micro))

    def _comes_from_another(self, row: Row) -> bool:
        return any(r.site.model != row.site.model and (r.micro, r.seq) < (row.micro, row.seq) for r in self.bad("output"))

    @property
    def turned_back(self) -> int | None:
        """The first micro-batch whose gradients are non-finite: what comes after it may run on weights that these have spoiled."""
        return min((r.micro for r in self.rows.of("output_grad") if r.nonfinite), default=None)


def births(run: Run) -> Iterator[Birth]:
    """The steps with a non-finite value that could be new, in order; consequences of parameters already non-finite are passed over."""
    steps, suspect, ill = _suspects(run)
    fresh = suspect & ~(ill & np.concatenate(([False], ill[:-1])))
    harmless: frozenset[str] = frozenset()
    told = {event.get("step") for event in run.events if event.get("event") == "origin" and event.get("entry")}
    for rows in read_steps(run, steps[fresh][:MOST_STEPS].tolist()):
        yield Birth(rows, harmless, rows.step in told)
        if not rows.harmed:
            harmless |= {r.site.name for kind in FLOWING for r in rows.of(kind) if r.bad}


def _suspects(run: Run) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Steps; whether each holds a non-finite value that is no mask; whether its parameters are non-finite."""
    rows = run.table.overview(None, None)
    ill = np.flatnonzero(rows.stats[:, 1:3].any(axis=1))
    step, site, stats = rows.step[ill], rows.site[ill], rows.stats[ill]
    no_mask = (stats[:, 1] > 0) | np.isinf(stats[:, 7])
    flows, holds, weighs = (_are(run, site, kinds) for kinds in (FLOWING, HELD, ("param",)))
    steps = np.asarray(run.steps, dtype=np.int64)
    return steps, np.isin(steps, step[holds | (flows & no_mask)]), np.isin(steps, step[weighs])


def _are(run: Run, ids: NDArray[np.int32], kinds: tuple[Kind, ...]) -> NDArray[np.bool_]:
    return np.isin(ids, [site.id for site in run.sites if site.kind in kinds])
