"""Forwards of one model again and again, each from the same state: no gradients, random states and buffers as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..._core._errors import AttachError, UsageError
from ..._core._select import Selection, select, select_sites
from ..._core._site import Site
from ..._origin._forward import Buffers, Randomness
from ..._taps._inventory import candidates
from .._turn import Turn
from ._edit import Edit
from ._op import Op


class Runs:
    """`fresh` wraps one run over the data; after it, too, everything is as it was at first. Edits act within `turn` alone."""

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise AttachError(f"model is a {type(model).__name__}, not a torch.nn.Module")
        self.model, self.turn = model, Turn()
        self._randomness, self._buffers = Randomness.now(), Buffers(model)
        self._buffers.take()

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """One run."""
        try:
            with torch.no_grad():
                yield
        finally:
            self._buffers.put()
            self._randomness.restore()


def sites_of(model: nn.Module, selection: Any) -> list[tuple[Site, Selection]]:
    """The sites that are meant, outputs where no kind is written; each with the selection that means it alone."""
    chosen = select(selection)
    sites = select_sites(list(candidates(model)), chosen, kinds=["output"], leaves=False)
    return [(site, chosen & select(_only(site))) for site in sites]


@contextmanager
def observed(runs: Runs, edits: Mapping[Any, Op]) -> Iterator[None]:
    """Edits that only look: those that never acted are not complained of."""
    looking = Edit(runs.model, edits, turn=runs.turn)
    try:
        yield
    finally:
        looking.discard()


def _only(site: Site) -> Callable[[Site], bool]:
    return lambda other: (other.path, other.kind) == (site.path, site.kind)


def mean_of(values: Iterable[Any], name: str) -> float:
    """The mean of numbers and of all elements of tensors."""
    total, count = 0.0, 0
    for value in values:
        numbers = torch.as_tensor(value, dtype=torch.float64) if isinstance(value, int | float) else value
        if not isinstance(numbers, torch.Tensor) or not numbers.numel():
            raise UsageError(f"metric returned {type(value).__name__}: return a number, or a tensor with one for each sample")
        total, count = total + float(numbers.detach().double().sum()), count + numbers.numel()
    if not count:
        raise UsageError(f"{name} has no batch: give a list of batches, or a DataLoader")
    return total / count
