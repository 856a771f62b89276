"""A run, read: what was recorded, as numbers per step. Needs no torch."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core._errors import UsageError
from .._core._site import PARAM_KINDS, Kind, Site
from ._columns import Rows, distinct_steps
from ._export import to_arrow, to_pandas, to_parquet, to_polars
from ._held import Held, Table
from ._incident import Incident, incident_paths, read_incident
from ._meta import Meta
from ._mirror import MirrorSource, is_url
from ._of_rank import RankSource
from ._per_rank import PerRank, values_per_rank
from ._ratio import UPDATE_RATIO, update_and_parameter
from ._series import Matrix, Series, Steps, Values, cell_values, matrix_values, merge_cells, ratio
from ._sink import Event
from ._sites import Sites
from ._sitetable import plain_names
from ._source import DirectorySource, Source
from ._summary import Summary, summarise

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa


class Run:
    """Open the run in a directory, or at a URL that fsspec knows (`s3://bucket/runs/base`), whose files are then fetched.

    The run may be finished, still being written, or cut off by a kill at any moment: all that was flushed is there. `refresh()` reads what
    has been added since. RunUnreadableError if there is no run, or one of a newer format.

    `run[key, quantity]` is a Series. The key is written in the selection language and names one site: `"encoder.3:output"`, `"fc.weight"`
    (a module path alone means its output, a parameter path the parameter), `"block@2:output"` (its third call in each micro-batch only),
    `"loss"`. The quantity is one of `count mean std rms l2 min max absmax sum zeros sparsity nan inf nonfinite`, or for a parameter
    `update_ratio` (rms of its update over its rms); without one, it is `mean` for the loss and scalars, `rms` for all else. A step's
    micro-batches, calls and ranks are merged exactly: what ranks hold in common counts once, parts of a parameter once each, activations of
    different samples add up. `run.rank(1)` is one rank alone, `run.per_rank(key)` sets them side by side.

    >>> import tempfile, hookscope._record as record
    >>> from hookscope._core._frame import Frame
    >>> writer = record.RunWriter(tempfile.mkdtemp(), record.Meta())
    >>> writer.sites([Site(0, "loss", "loss")])
    >>> zero = np.zeros(1, np.int32)
    >>> writer.frame(Frame(0, zero, zero, zero, zero, np.array([[1.0, 0, 0, 0, 0.5, 0.25, 0.5, 0.5]])))
    >>> writer.close("finished")
    >>> Run(writer.path)["loss"].values.tolist()
    [0.5]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._open(MirrorSource(os.fspath(path)) if is_url(path) else DirectorySource(Path(path)))

    @classmethod
    def from_source(cls, source: Source) -> Run:
        """A run that is read from somewhere else than a directory."""
        run = cls.__new__(cls)
        run._open(source)
        return run

    def _open(self, source: Source) -> None:
        self._source = source
        self._extent = -1
        self.refresh()

    def refresh(self) -> bool:
        """Read what was added since; True if there are new rows."""
        snapshot = self._source.poll()
        stored = snapshot.stored
        extent = sum(len(part) for part in snapshot.parts) if stored is None else sum(one.bytes for one in stored.extents)
        changed, self._extent = extent != self._extent, extent
        self._snapshot = snapshot
        self._sites = Sites(plain_names(snapshot.sites))
        if changed:
            self._table: Table = stored or Held(snapshot.parts, snapshot.shares)
        return changed

    def follow(self, poll: float = 0.2, timeout: float | None = None) -> Iterator[int]:
        """Yield every step as it arrives, those already recorded first, until the run is closed or its process is gone.

        `poll` is the pause between two looks, `timeout` how long to wait in vain before giving up (None: forever), both in seconds.
        """
        last, since = -1, time.monotonic()
        while True:
            ended = self.meta.status != "running" or self.meta.process_is_gone
            self.refresh()
            for step in self.steps[self.steps > last].tolist():
                last, since = step, time.monotonic()
                yield step
            if ended or (timeout is not None and time.monotonic() - since >= timeout):
                return
            time.sleep(poll)

    @property
    def path(self) -> Path | None:
        """The run's directory; None for a run in memory."""
        return self._source.path

    @property
    def meta(self) -> Meta:
        """Versions, host, schedule, settings, status, times."""
        return self._snapshot.meta

    @property
    def sites(self) -> Sites:
        """All sites, also those that never fired."""
        return self._sites

    @property
    def steps(self) -> Steps:
        """The recorded steps, sorted."""
        return self._table.steps

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have recorded anything."""
        return self._table.ranks

    def rank(self, rank: int) -> Run:
        """What one rank has recorded, as a run: `run.rank(1)["fc:output"]`. Of a parameter in parts it has its own part."""
        if rank not in self.ranks:
            raise UsageError(f"rank {rank} has recorded nothing in this run: choose from {', '.join(map(str, self.ranks)) or 'none'}")
        return Run.from_source(RankSource(self._source, rank))

    def per_rank(self, key: str | Site, quantity: str | None = None) -> PerRank:
        """One number a step and rank: `values[i, j]` is that of `ranks[j]` at `steps[i]`, NaN where it has none."""
        site, call = self._sites.one(key)
        rows = self._table.rows_of(site, None, None)
        if call is not None:
            rows = rows.take(np.flatnonzero(rows.call == call))
        return values_per_rank(rows, site, self._snapshot.shares, quantity or default_quantity(site))

    @property
    def uneven_steps(self) -> Steps:
        """Steps that some rank has left out, between its first and its last: merged, they speak of the other ranks alone."""
        return self._table.uneven

    @property
    def events(self) -> list[Event]:
        """What happened, in order: steps skipped, sites never fired, findings, hookscope's own troubles."""
        return list(self._snapshot.events)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """What the flight recorder has kept of the moments at which the training went wrong, by step; none in a run in memory."""
        return () if self.path is None else tuple(read_incident(path) for path in incident_paths(self.path / "incidents"))

    @property
    def unread_bytes(self) -> int:
        """Bytes that form no whole batch: torn by a kill, or being written at this moment."""
        stored = self._snapshot.stored
        return self._snapshot.unread if stored is None else stored.unread

    def __getitem__(self, key: str | Site | tuple[str | Site, str]) -> Series:
        name, quantity = key if isinstance(key, tuple) else (key, None)
        if quantity == UPDATE_RATIO:
            return self._ratio_series(self._sites.one(name, kinds=PARAM_KINDS[:1])[0])
        site, call = self._sites.one(name)
        return self._site_series(site, quantity or default_quantity(site), call)

    def series(self, selection: Any, quantity: str | None = None) -> dict[str, Series]:
        """A Series for every site that a selection names, by the site's name."""
        kinds: tuple[Kind, ...] | None = PARAM_KINDS[:1] if quantity == UPDATE_RATIO else None
        found = self._sites.meant(selection, kinds=kinds)
        if quantity == UPDATE_RATIO:
            return {site.name: self._ratio_series(site) for site in found}
        return {site.name: self._site_series(site, quantity or default_quantity(site)) for site in found}

    def matrix(self, sites: Sequence[Site], quantity: str) -> Matrix:
        """One quantity of many sites over all recorded steps of the run, NaN where a site was not recorded.

        With `update_ratio`, any site of a parameter stands for the parameter.
        """
        if quantity != UPDATE_RATIO:
            return Matrix(self.steps, tuple(sites), self._values(sites, quantity))
        pairs = [update_and_parameter(self._sites, site) for site in sites]
        values = ratio(self._values([u for u, _ in pairs], "rms"), self._values([p for _, p in pairs], "rms"))
        return Matrix(self.steps, tuple(sites), values)

    def rows(self, first: int | None = None, last: int | None = None) -> Rows:
        """All recorded rows from step `first` to step `last`, both included, in the order of step, micro-batch and execution."""
        return self._table.rows(first, last)

    def counted(self) -> Rows:
        """The rows of which every element that ranks hold in common is in one: merged, they are the stats of all ranks."""
        return self._table.counted

    @property
    def table(self) -> Table:
        """The rows, to be asked for more than numbers per step; of a run too large for memory they are read when asked for."""
        return self._table

    def arrow(self) -> pa.Table:
        """Everything in long form: one row per step, rank, micro-batch, site and call, with the site's name, path and kind spelt out."""
        return to_arrow(self.rows(), self._sites)

    def pandas(self) -> pd.DataFrame:
        """The long form as a pandas DataFrame; needs pandas."""
        return to_pandas(self.arrow())

    def polars(self) -> pl.DataFrame:
        """The long form as a Polars DataFrame; needs polars."""
        return to_polars(self.arrow())

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write the long form into one Parquet file."""
        to_parquet((to_arrow(rows.in_order(), self._sites) for rows in self._table.portions()), path)

    def summary(self) -> Summary:
        """The run at a glance; its text is meant to be printed."""
        self.counted()  # of a run too large for memory, one pass over it for all that is asked here
        losses = [site for site in self._sites if site.kind == "loss"]
        loss = self._site_series(losses[0], "mean") if losses else None
        return summarise(self._source, self._snapshot, steps=self.steps, loss=loss)

    def __repr__(self) -> str:
        return f"<Run {self.path or 'in memory'}: {self.meta.status}, {len(self.steps)} steps, {len(self._sites)} sites>"

    def _values(self, sites: Sequence[Site], quantity: str) -> Values:
        return matrix_values(self.counted(), sites, self.steps, quantity)

    def _site_series(self, site: Site, quantity: str, call: int | None = None) -> Series:
        rows = self._table.counted_of(site, quantity)
        if call is not None:
            calls = np.unique(rows.call).tolist()
            if call not in calls:
                raise UsageError(f"{site.name!r} has no call {call}: recorded are {', '.join(map(str, calls)) or 'none'}")
            rows = rows.take(np.flatnonzero(rows.call == call))
        steps = distinct_steps(rows.step)
        cells = merge_cells(rows, [site], steps)
        return Series(steps[cells.step], cell_values(cells, [site], quantity))

    def _ratio_series(self, site: Site) -> Series:
        update, parameter = (self._site_series(s, "rms") for s in update_and_parameter(self._sites, site))
        steps, left, right = np.intersect1d(update.steps, parameter.steps, return_indices=True)
        return Series(steps, ratio(update.values[left], parameter.values[right]))


def default_quantity(site: Site) -> str:
    """What is meant when no quantity is named: mean for scalars, rms for tensors."""
    return "mean" if site.kind in ("loss", "scalar") else "rms"
