"""What has been taken so far in one run: tensors by site and call, in the order in which they came."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..._core._errors import UsageError
from ..._core._match import EVERY_CALL
from ..._core._select import Matcher, Selectable, select, select_sites
from ..._core._site import Site
from ..._taps._modes import unseen
from ._key import Key
from ._layout import OVER_SEQUENCES, is_mute, is_state
from ._options import Options
from ._pool import Pool, as_pool
from ._value import kept, version
from ._wanted import UNWRITTEN, Wanted

_OF_MODULES: Selectable = ("**:input,output,output_grad", "**:output/*")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor was seen."""

    site: Site
    call: int
    module: nn.Module


class Collector:
    """`take` keeps a tensor if it is wanted; `found` is what there is."""

    def __init__(self, wanted: Wanted, options: Options) -> None:
        self.wanted, self.options = wanted, options
        self.found: dict[Key, torch.Tensor] = {}
        self.versions: dict[Key, int] = {}  # of those held without a copy
        self.batch: Any = None
        self._calls: dict[Site, frozenset[int]] = {}
        self._pools = _pools(wanted, options)
        self._over_sequences = any(isinstance(named.module, OVER_SEQUENCES) for named in wanted.inside)

    def begin(self, batch: Any) -> None:
        """Forget what was taken, and begin with another batch."""
        self.found, self.versions, self.batch = {}, {}, batch

    def wants(self, site: Site, call: int) -> bool:
        """Whether the tensor at that site is to be kept in that call."""
        if site not in self._calls:
            self._calls[site] = self.wanted.matcher.hit(site)
        calls = self._calls[site]
        return (calls == EVERY_CALL or call in calls) and self.options.call in ("all", call)

    def take(self, place: Place, tensor: torch.Tensor, *, adds: bool = False) -> None:
        """Keep the value that `tensor` has now; where it `adds`, on top of what another backward through the same call has brought."""
        if not self.wants(place.site, place.call):
            return
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            raise UsageError(f"{place.site.name!r} is inside torch.func (vmap, grad): its tensors mean nothing outside; extract around it")
        with unseen(), torch._C.DisableTorchFunction():  # what runs here is ours, and for no mode of the user's
            value = kept(self._pooled(place, tensor if self.options.grad else tensor.detach()), tensor, self.options)
            key = Key(place.site, place.call)
            if adds and key in self.found:
                value = self.found[key] + value
        self.found[key] = value
        if self.options.clone is False:
            self.versions[key] = version(value)

    def _pooled(self, place: Place, tensor: torch.Tensor) -> torch.Tensor:
        for where, pool in self._pools:
            if where.matches(place.site):
                if isinstance(pool, Pool) and pool.layout is None and self._over_sequences and is_mute(place.module, tensor.dim()):
                    raise UsageError(pool.untold(tensor, place.module, None))
                pooled = _fitting(pool, place, tensor).of(tensor, place.module, self.batch) if isinstance(pool, Pool) else pool(tensor)
                if not isinstance(pooled, torch.Tensor):
                    raise UsageError(f"the pool of {place.site.name!r} returned a {type(pooled).__name__}, not a tensor")
                return pooled
        return tensor


def _fitting(pool: Pool, place: Place, tensor: torch.Tensor) -> Pool:
    """The pool, for a recurrent state over its layers: those are its positions, and a mask of the sequence does not speak of them."""
    if pool.layout is None and tensor.dim() == 3 and is_state(place.module, place.site.output_path):
        return replace(pool, layout="LNC", mask=None)
    return pool


def _pools(wanted: Wanted, options: Options) -> list[tuple[Matcher, Pool | Callable[[torch.Tensor], torch.Tensor]]]:
    """Which pool is meant for which sites; parameters have neither samples nor positions.

    Raises `SelectionError` where a part of a mapping's selection matches nothing in the model.
    """
    if options.pool is None:
        return []
    each = options.pool if isinstance(options.pool, Mapping) else {_OF_MODULES: options.pool}
    for where in options.pool if isinstance(options.pool, Mapping) else ():
        select_sites(wanted.every, where, kinds=UNWRITTEN, leaves=False)
    return [(select(where).among(wanted.every, kinds=UNWRITTEN), as_pool(pool)) for where, pool in each.items()]
