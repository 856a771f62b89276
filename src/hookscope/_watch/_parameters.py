"""Parameters, their gradients as the optimizer gets them, and what one step changed."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from .._core._site import Kind, Site
from .._core._stats import Rows
from .._stats import Row, is_dense, reduce_into
from .._taps._inventory import candidates, is_lazy, parameters, tensor_facts
from ._store import Store
from ._table import SiteTable

SAMPLE = 4096  # elements of a parameter whose change is followed; the error of its rms is about 1 / sqrt(2 * 4096) = 1 %


@dataclass(slots=True)
class Watched:
    """One parameter: where its stats go, and a copy of the sampled elements from before the step."""

    ref: weakref.ref[nn.Parameter]
    site: Site  # as kind "param"; the others differ in the kind alone
    rows: dict[Kind, tuple[int, Row]] = field(default_factory=dict)
    stride: int = 1
    before: torch.Tensor | None = None


class Parameters:
    """`full` follows every element's change instead of a sample; it costs a copy of the weights."""

    def __init__(self, table: SiteTable, store: Store, *, full: bool) -> None:
        self.table = table
        self.store = store
        self.full = full
        self._by_id: dict[int, Watched] = {}
        self._written: dict[int, Row] = {}  # site -> row, since the last fold

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

    def alive(self) -> list[nn.Parameter]:
        """All watched parameters that still exist."""
        return [p for watched in self._by_id.values() if (p := watched.ref()) is not None]

    def read_values(self, wanted: Iterable[nn.Parameter]) -> None:
        """Stats of the parameters as they are now."""
        for parameter in wanted:
            self._write(parameter, "param", parameter)

    def read_gradients(self, wanted: Iterable[nn.Parameter]) -> None:
        """Stats of the gradients as they are now; one that is None leaves no row."""
        for parameter in wanted:
            if parameter.grad is not None:
                self._write(parameter, "param_grad", parameter.grad)

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
        sites, rows = list(self._written), self.store.read(list(self._written.values()))
        self._written = {}
        return sites, rows

    def _write(self, parameter: nn.Parameter, kind: Kind, tensor: torch.Tensor) -> None:
        if is_lazy(parameter):
            return
        watched = self._by_id[id(parameter)]
        if kind not in watched.rows:
            sampled = tensor.numel() if kind == "update" and tensor.numel() < parameter.numel() else None
            site = replace(watched.site, kind=kind, sampled=sampled, **tensor_facts(parameter))
            watched.rows[kind] = self.table.add(site), self.store.row(tensor)
        number, row = watched.rows[kind]
        if number >= 0 and reduce_into(row, tensor):
            self._written[number] = row


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
