"""What a run's steps look like over time: the loss, the norm of the whole gradient, the learning rate, how far each weight matrix moved."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._core._site import Site
from .._record import Run
from ._step import sites_of

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Series:
    """One number a step. NaN is absence; a non-finite measurement is inf."""

    steps: NDArray[np.int64]
    values: Values

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def present(self) -> Series:
        """Only the steps that have a number."""
        there = ~np.isnan(self.values)
        return Series(self.steps[there], self.values[there])

    def window(self, first: int, last: int) -> Values:
        """The numbers of the steps first..last."""
        return self.values[(self.steps >= first) & (self.steps <= last)]


EMPTY = Series(np.zeros(0, dtype=np.int64), np.zeros(0))


def column(run: Run, site: Site, quantity: str) -> Series:
    """One quantity of one site."""
    table = run.matrix([site], quantity)
    return Series(np.asarray(table.steps, dtype=np.int64), np.asarray(table.values)[:, 0])


def loss(run: Run) -> Series:
    """The mean of the losses given to backward in each step."""
    sites = sites_of(run, "loss")
    if not sites:
        return EMPTY
    mean, bad = run.matrix(sites, "mean"), np.nan_to_num(run.matrix(sites, "nonfinite").values)
    there = ~np.isnan(mean.values)
    total = np.where(there, mean.values, 0.0).sum(axis=1)
    values = np.divide(total, there.sum(axis=1), out=np.full(len(total), np.nan), where=there.any(axis=1))
    values[(bad > 0).any(axis=1)] = np.inf
    return Series(np.asarray(mean.steps, dtype=np.int64), values).present


def gradient_norm(run: Run) -> Series:
    """The norm over all parameters' gradients in each step: before clipping where that was recorded, else as the optimizer used them."""
    sites = sites_of(run, "param_grad")
    if not sites:
        return EMPTY
    steps, size = run.matrix(sites, "l2").steps, _before_clipping(run, sites, "l2")
    bad = np.nan_to_num(_before_clipping(run, sites, "nonfinite"))
    values = np.sqrt(np.nansum(np.square(size), axis=1))
    values[np.isnan(size).all(axis=1)] = np.nan
    values[(bad > 0).any(axis=1)] = np.inf
    return Series(np.asarray(steps, dtype=np.int64), values).present


def _before_clipping(run: Run, sites: list[Site], quantity: str) -> Values:
    """One quantity of gradients: as they were before the loop changed them in the steps in which it did, else as they were used."""
    values = np.array(run.matrix(sites, quantity).values)
    earlier = {(s.model, s.path): s for s in sites_of(run, "param_grad", label="preclip")}
    for i, site in enumerate(sites):
        if (before := earlier.get((site.model, site.path))) is not None:
            preclip = np.asarray(run.matrix([before], quantity).values)[:, 0]
            values[:, i] = np.where(np.isnan(preclip), values[:, i], preclip)
    return values


def learning_rate(run: Run) -> Series:
    """The learning rate, the mean over parameter groups where there are several."""
    sites = [s for s in sites_of(run, "scalar") if s.path == "lr" or s.path.startswith("lr.")]
    if not sites:
        return EMPTY
    table = run.matrix(sites, "mean")
    there = ~np.isnan(table.values)
    total = np.where(there, table.values, 0.0).sum(axis=1)
    values = np.divide(total, there.sum(axis=1), out=np.full(len(total), np.nan), where=there.any(axis=1))
    return Series(np.asarray(table.steps, dtype=np.int64), values).present


def update_ratio(run: Run) -> Series:
    """rms(update) / max(rms(weight), rms of a Glorot initialisation), the median over weight matrices, in each step."""
    updates = {(s.model, s.path): s for s in sites_of(run, "update") if s.shape is not None and len(s.shape) >= 2}
    weights = {(s.model, s.path): s for s in sites_of(run, "param")}
    names = [name for name in updates if name in weights]
    if not names:
        return EMPTY
    moved = run.matrix([updates[n] for n in names], "rms")
    held = run.matrix([weights[n] for n in names], "rms")
    shared = np.intersect1d(moved.steps, held.steps)
    size = np.asarray(held.values)[np.isin(held.steps, shared)]
    ratio = np.asarray(moved.values)[np.isin(moved.steps, shared)] / np.fmax(size, [_glorot(updates[n]) for n in names])
    there = ~np.isnan(ratio).all(axis=1)
    return Series(shared[there].astype(np.int64), np.nanmedian(ratio[there], axis=1))


def _glorot(site: Site) -> float:
    """rms of Glorot's normal initialisation, sqrt(2 / (fan_in + fan_out))."""
    shape = site.shape or (1, 1)
    around = math.prod(shape[2:])
    return math.sqrt(2.0 / max((shape[0] + shape[1]) * around, 1))
