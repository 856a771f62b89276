"""Runs made by hand for the tests of the report: known numbers at known sites."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hookscope._core._frame import STEP_LEVEL, Frame
from hookscope._core._site import Kind, Site
from hookscope._core._stats import Stats
from hookscope._record import MemoryWriter, Meta, Run, RunWriter, Sink


def stats(rms: float, count: int = 4, *, nan: int = 0, inf: int = 0) -> Stats:
    """`count` elements, of which the finite ones are all `rms`."""
    finite = count - nan - inf
    low, high = (rms, rms) if finite else (np.inf, -np.inf)
    return Stats(count, nan, inf, 0, rms * finite, rms * rms * finite, low, np.inf if inf else high)


def _stats(value: Stats | float, count: int = 4) -> Stats:
    return value if isinstance(value, Stats) else stats(value, count)


@dataclass
class Making:
    """A run being made: sites are numbered as they come, rows are given step by step."""

    table: list[Site] = field(default_factory=list)
    rows: dict[int, list[tuple[int, int, int, Stats]]] = field(default_factory=dict)
    events: list[dict[str, object]] = field(default_factory=list)

    def site(self, path: str, kind: Kind, cls: str = "", *, module: str | None = None, shape: tuple[int, ...] | None = None) -> int:
        """The id of the site, which is new the first time."""
        for site in self.table:
            if (site.path, site.kind) == (path, kind):
                return site.id
        owner = path if module is None else module
        bases = (f"torch.nn.modules.{cls}",) if cls else ()
        self.table.append(Site(len(self.table), path, kind, module=owner, bases=bases, shape=shape))
        return len(self.table) - 1

    def add(self, step: int, site: int, row: Stats, seq: int = STEP_LEVEL) -> None:
        """One row; with a seq it belongs to micro-batch 0, without to the step."""
        self.rows.setdefault(step, []).append((STEP_LEVEL if seq == STEP_LEVEL else 0, site, seq, row))

    def module(self, step: int, path: str, seq: int, *, cls: str = "Linear", rms: Stats | float = 1.0, grad: Stats | float = 0.1) -> None:
        """Output and output gradient of a module."""
        self.add(step, self.site(path, "output", cls, shape=(2, 2)), _stats(rms), seq)
        self.add(step, self.site(path, "output_grad", cls, shape=(2, 2)), _stats(grad), seq)

    def weight(
        self, step: int, module: str, *, value: float = 1.0, grad: Stats | float = 0.1, update: float = 0.001, cls: str = "Linear"
    ) -> None:
        """A weight of four elements, its gradient and its update."""
        path = f"{module}.weight" if module else "weight"
        for kind, row in (("param", stats(value)), ("param_grad", _stats(grad)), ("update", stats(update))):
            self.add(step, self.site(path, kind, cls, module=module, shape=(2, 2)), row)

    def loss(self, step: int, value: Stats | float) -> None:
        """The loss of a step."""
        self.add(step, self.site("loss", "loss"), _stats(value, 1), 10_000)

    def run(self) -> Run:
        """The run, in memory."""
        sink = MemoryWriter(Meta())
        self._feed(sink)
        return sink.run

    def write(self, path: Path) -> Path:
        """The run, on disk."""
        self._feed(RunWriter(path, Meta()))
        return path

    def _feed(self, sink: Sink) -> None:
        sink.sites(self.table)
        for frame in self.frames():
            sink.frame(frame)
        for event in self.events:
            sink.event(event)
        sink.close("finished")

    def frames(self) -> list[Frame]:
        """The frames of all steps."""
        return [_frame(step, rows) for step, rows in sorted(self.rows.items())]


def _frame(step: int, rows: list[tuple[int, int, int, Stats]]) -> Frame:
    micro, site, seq = (np.array(column, dtype=np.int32) for column in zip(*((r[0], r[1], r[2]) for r in rows), strict=True))
    return Frame(step, micro, site, np.zeros(len(rows), np.int32), seq, np.array([r[3] for r in rows], dtype=np.float64))


def deep(blocks: int, steps: int, *, growth: float = 1.0) -> Making:
    """A stack h.0, h.1, ... of blocks of a Linear and a ReLU, between wte and lm_head; the output grows by that factor a block."""
    made = Making()
    for step in range(steps):
        made.module(step, "wte", 0, cls="Embedding")
        made.weight(step, "wte", cls="Embedding")
        for block in range(blocks):
            rms = growth**block
            made.module(step, f"h.{block}.fc", 3 * block + 1, rms=rms)
            made.weight(step, f"h.{block}.fc")
            made.module(step, f"h.{block}.act", 3 * block + 2, cls="ReLU", rms=rms)
            made.module(step, f"h.{block}", 3 * block + 3, cls="Block", rms=rms)
        made.module(step, "lm_head", 3 * blocks + 1)
        made.weight(step, "lm_head")
        made.module(step, "", 3 * blocks + 2, cls="Model")
        made.loss(step, 2.0 / (step + 1))
    return made
