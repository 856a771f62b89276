"""Parameters, their gradients as the optimizer gets them, and what one step changed."""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .._core._site import Kind, Site
from .._core._stats import Rows
from .._stats import Row, is_dense, reduce_into
from .._taps._inventory import candidates, is_lazy, parameters, tensor_facts
from ._store import Store, unscaled_by
from ._table import SiteTable

SAMPLE = 4096  # elements of a parameter whose change is followed; the error of its rms is about 1 / sqrt(2 * 4096) = 1 %
SAME = 1e-5  # a norm that differs by less has been left alone: unscaling rounds in half precision, clipping does not stop here


@dataclass(frozen=True, slots=True)
class Early:
    """A gradient as it was when backward had ended: which tensor, in which version, with which factor on the loss; where its stats are."""

    grad: int
    version: int
    scale: float
    row: Row

    def still(self, grad: torch.Tensor) -> bool:
        """Whether nothing has touched the gradient since."""
        return id(grad) == self.grad and grad._version == self.version


@dataclass(frozen=True, slots=True)
class Clip:
    """What happened to the gradients between backward and the step: the factor on their common norm (1.0: nothing), and, where they were
    clipped by value and nothing else, the limit.
    """

    factor: float = 1.0
    value: float | None = None


@dataclass(slots=True)
class Watched:
    """One parameter: where its stats go, and a copy of the sampled elements from before the step."""

    ref: weakref.ref[nn.Parameter]
    site: Site  # as kind "param"; the others differ in kind and label alone
    scale: float = 1.0  # the factor on the loss whose backward gave its gradient
    rows: dict[tuple[Kind, str], tuple[int, Row]] = field(default_factory=dict)
    early: Early | None = None
    early_row: Row | None = None
    stride: int = 1
    before: torch.Tensor | None = None


class Parameters:
    """`full` follows every element's change instead of a sample; it costs a copy of the weights. `foreign` are the models that are not to
    be touched now, since another thread is training them.
    """

    def __init__(self, table: SiteTable, store: Store, *, full: bool, foreign: Collection[str] = ()) -> None:
        self.table = table
        self.store = store
        self.full = full
        self.foreign = foreign
        self._by_id: dict[int, Watched] = {}
        self._written: dict[int, tuple[Row, float]] = {}  # site -> row and the factor in it, since the last fold

    def attach(self, model: nn.Module, name: str) -> None:
        """Know the parameters of `model`; again after its tree has changed."""
        sites = {site.path: site for site in candidates(model, name) if site.kind == "param"}
        for named in parameters(model):
            if self.get(named.parameter) is None:
                self._by_id[id(named.parameter)] = Watched(weakref.ref(named.parameter), sites[named.path])

    def get(self, parameter: nn.Parameter) -> Watched | None:
        """What is known of `parameter`, if it is watched."""
        found = self._by_id.get(id(parameter))
        return found if found is not None and found.ref() is parameter else None

    def __len__(self) -> int:
        return len(self._by_id)

    def names(self, wanted: Iterable[nn.Parameter]) -> set[str]:
        """Their full paths, which a parameter shares with the one whose place it has taken."""
        return {self._by_id[id(parameter)].site.full_path for parameter in wanted}

    def alive(self) -> list[nn.Parameter]:
        """All watched parameters that still exist, and may be touched."""
        touchable = [w for w in self._by_id.values() if w.site.model not in self.foreign] if self.foreign else self._by_id.values()
        return [p for watched in touchable if (p := watched.ref()) is not None]

    def read_values(self, wanted: Iterable[nn.Parameter]) -> None:
        """Stats of the parameters as they are now."""
        for parameter in wanted:
            self._write(parameter, "param", parameter)

    def gave(self, given: Iterable[nn.Parameter], scale: float) -> None:
        """A backward from a loss with the factor `scale` has given these their gradients."""
        for parameter in given:
            self._by_id[id(parameter)].scale = scale

    def read_early(self) -> None:
        """Look at the gradients when backward has ended, before the loop unscales and clips them."""
        for parameter in self.alive():
            grad, watched = parameter.grad, self._by_id[id(parameter)]
            watched.early = None
            if grad is not None:
                watched.early_row = row = watched.early_row or self.store.row(grad)
                if reduce_into(row, grad):
                    watched.early = Early(id(grad), grad._version, watched.scale, row)

    def bad_early(self) -> bool:
        """Whether a gradient was not finite when it was looked at."""
        rows = [watched.early.row for watched in self._by_id.values() if watched.early is not None]
        return bool(self.store.read(rows)[:, 1:3].any())

    def forget_early(self) -> None:
        """The gradients looked at are no longer those before the next step."""
        for watched in self._by_id.values():
            watched.early = None

    def read_gradients(self, wanted: Iterable[nn.Parameter], scale: float = 1.0) -> Clip | None:
        """Stats of the gradients as they are now, `scale` taken out; one that is None leaves no row.

        Returns what the loop has done to them since backward ended, None where that is not known. If it has changed them, the stats of
        before are given too, as `param_grad/preclip`.
        """
        read = [p for p in wanted if p.grad is not None and not is_lazy(p)]
        rows = []
        for parameter in read:
            grad, early = parameter.grad, self._by_id[id(parameter)].early
            assert grad is not None
            place = self._place(parameter, "param_grad", "", grad)
            untouched = early is not None and early.scale == scale and early.still(grad)
            row = early.row if early is not None and untouched else place[1]
            if untouched or reduce_into(row, grad):
                self._keep(place, row, scale)
                rows.append(row)
        return self._clipped(read, rows, scale)

    def read_given(self, wanted: Iterable[nn.Parameter]) -> None:
        """Stats of gradients that no optimizer has come for: if untouched, they still have the factor with which they were given."""
        for parameter in wanted:
            grad, early = parameter.grad, self._by_id[id(parameter)].early
            if grad is not None:
                self._write(parameter, "param_grad", grad, early.scale if early is not None and early.still(grad) else 1.0)

    def _clipped(self, read: list[nn.Parameter], rows: list[Row], scale: float) -> Clip | None:
        early = [found for p in read if (found := self._by_id[id(p)].early) is not None]
        if not read or len(early) < len(read) or len(rows) < len(read):
            return None
        if all(seen.scale == scale and seen.still(p.grad) for p, seen in zip(read, early, strict=True) if p.grad is not None):
            return Clip()
        before = unscaled_by(self.store.read([seen.row for seen in early]), [seen.scale for seen in early])
        after = unscaled_by(self.store.read(rows), [scale] * len(rows))
        if before[:, 1:3].any() or after[:, 1:3].any():  # of NaN and Inf no factor is known
            if before[:, 1:3].any() and (before[:, 1:3] != after[:, 1:3]).any():  # they are no longer to be seen
                self._keep_early(read)
            return None
        norms = np.sqrt(before[:, 5]), np.sqrt(after[:, 5])
        whole = tuple(math.sqrt(float(np.square(norm).sum())) for norm in norms)
        if whole[0] == 0 or abs(whole[1] / whole[0] - 1) < SAME:
            return Clip()
        self._keep_early(read)
        evenly = np.allclose(norms[1], norms[0] * (whole[1] / whole[0]), rtol=1e-3, atol=1e-12)
        return Clip(whole[1] / whole[0], None if evenly else _limit(before, after))

    def _keep_early(self, read: list[nn.Parameter]) -> None:
        for parameter in read:
            early = self._by_id[id(parameter)].early
            if early is not None and parameter.grad is not None:
                self._keep(self._place(parameter, "param_grad", "preclip", parameter.grad), early.row, early.scale)

    def square_norms(self, parameters: Sequence[nn.Parameter], kind: Kind) -> NDArray[np.float64]:
        """Sums of squares of a kind as last read, extrapolated where only a sample was; NaN for a parameter of which it is not read."""
        found = [(-1, None) if (watched := self.get(p)) is None else watched.rows.get((kind, ""), (-1, None)) for p in parameters]
        norms = np.full(len(parameters), np.nan)
        read = [i for i, (number, row) in enumerate(found) if row is not None and number >= 0]
        stats = self.store.read([row for _, row in (found[i] for i in read) if row is not None])
        norms[read] = stats[:, 5] * [parameters[i].numel() for i in read] / np.maximum(stats[:, 0], 1)
        return norms

    def remember(self, wanted: Iterable[nn.Parameter]) -> None:
        """Keep the sampled elements as they are now, for `read_updates` to compare with."""
        for parameter in wanted:
            watched = self._by_id[id(parameter)]
            if is_lazy(parameter):
                continue
            if watched.before is None:
                watched.stride = 1 if self.full else sampling_stride(tuple(parameter.shape))
            sample = _sample(parameter, watched.stride)
            if watched.before is None or watched.before.shape != sample.shape or watched.before.device != sample.device:
                with torch.inference_mode(False):
                    watched.before = sample.clone()
            else:
                watched.before.copy_(sample)

    def read_updates(self, wanted: Iterable[nn.Parameter]) -> None:
        """Stats of what has changed since `remember`."""
        for parameter in wanted:
            change = _change(parameter, self._by_id[id(parameter)])
            if change is not None:
                self._write(parameter, "update", change)

    def changed(self) -> bool:
        """Whether any remembered element is another one now. Waits for the device."""
        changes = (_change(p, self._by_id[id(p)]) for p in self.alive())
        return any(bool((change != 0).any()) for change in changes if change is not None)

    def fold(self) -> tuple[list[int], Rows]:
        """Sites and rows written since the last fold."""
        sites, written = list(self._written), list(self._written.values())
        self._written = {}
        return sites, unscaled_by(self.store.read([row for row, _ in written]), [scale for _, scale in written])

    def _write(self, parameter: nn.Parameter, kind: Kind, tensor: torch.Tensor, scale: float = 1.0) -> None:
        if not is_lazy(parameter):
            place = self._place(parameter, kind, "", tensor)
            if place[0] >= 0 and reduce_into(place[1], tensor):
                self._keep(place, place[1], scale)

    def _keep(self, place: tuple[int, Row], row: Row, scale: float) -> None:
        if place[0] >= 0:
            self._written[place[0]] = row, scale

    def _place(self, parameter: nn.Parameter, kind: Kind, label: str, tensor: torch.Tensor) -> tuple[int, Row]:
        watched = self._by_id[id(parameter)]
        if (kind, label) not in watched.rows:
            sampled = tensor.numel() if kind == "update" and tensor.numel() < parameter.numel() else None
            site = replace(watched.site, kind=kind, label=label, sampled=sampled, **tensor_facts(parameter))
            watched.rows[kind, label] = self.table.add(site), self.store.row(tensor)
        return watched.rows[kind, label]


def _limit(before: Rows, after: Rows) -> float | None:
    """The limit of a clipping by value; None where the extremes of the gradients are not those that it leaves."""
    extremes = [rows[after[:, 0] > 0, 6:8] for rows in (before, after)]
    limit = float(np.abs(extremes[1]).max())
    return limit if np.allclose(extremes[1], np.clip(extremes[0], -limit, limit), rtol=1e-3, atol=1e-12) else None


def sampling_stride(shape: tuple[int, ...], wanted: int = SAMPLE) -> int:
    """The largest stride that leaves at least `wanted` elements and, being coprime to the rows' length, walks through every column."""
    stride = max(1, math.prod(shape) // wanted)
    while math.gcd(stride, math.prod(shape[1:])) > 1:
        stride -= 1
    return stride


def _sample(parameter: nn.Parameter, stride: int) -> torch.Tensor:
    value = parameter.detach()
    if not value.is_contiguous() and is_dense(value):  # channels_last: as it lies in memory; a reshape would copy it all
        return value.as_strided((value.numel(),), (1,))[::stride]
    return value.reshape(-1)[::stride]


def _change(parameter: nn.Parameter, watched: Watched) -> torch.Tensor | None:
    before = watched.before
    if before is None or is_lazy(parameter):
        return None
    now = _sample(parameter, watched.stride)
    if now.shape != before.shape or now.device != before.device:
        return None
    return now.float() - before.float() if now.dtype.itemsize < 4 else now - before  # halves differ by what need not be a half
