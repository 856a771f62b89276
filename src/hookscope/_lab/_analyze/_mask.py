"""From a batch to the mask of what in it is padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from ..._core._errors import UsageError
from ..._core._names import near

MaskOf: TypeAlias = "str | Callable[[Any], torch.Tensor | None] | bool | None"
AUTOMATIC = "attention_mask"


def mask_of(batch: Any, mask: MaskOf) -> torch.Tensor | None:
    """The mask of a batch, True where a position counts; None where all do."""
    found: Any = None
    if mask is None or mask is True:
        found = batch.get(AUTOMATIC) if isinstance(batch, Mapping) else None
        found = found if isinstance(found, torch.Tensor) and (found.dim() == 2 or _is_spread(found)) else None
    elif isinstance(mask, str):
        if not isinstance(batch, Mapping) or mask not in batch:
            keys = list(batch) if isinstance(batch, Mapping) else []
            hint = f": did you mean {' or '.join(map(repr, near(mask, keys)))}?" if near(mask, keys) else ""
            raise UsageError(f"mask={mask!r} is no key of the batch, {_described(batch, keys)}{hint}")
        found = batch[mask]
    elif callable(mask):
        found = mask(batch)
    if found is not None and not isinstance(found, torch.Tensor):
        raise UsageError(f"the mask is a {type(found).__name__}: give a tensor of the shape (batch, time), not 0 where a position counts")
    return None if found is None else _counting(found.detach())


def _counting(mask: torch.Tensor) -> torch.Tensor:
    """True where a position counts. An additive mask has 0 there, and a large negative number or -inf where it does not."""
    if not mask.is_floating_point() or not bool((mask <= 0).all()):
        return mask != 0
    if mask.dim() == 4 and mask.shape[1] == 1:  # (batch, 1, queries or 1, keys): a key that some query may see is no padding
        mask = mask.amax(2)[:, 0]
    return mask == 0


def _is_spread(mask: torch.Tensor) -> bool:
    """Whether it is an additive one as attention takes it, (batch, 1, queries or 1, keys)."""
    return mask.dim() == 4 and mask.shape[1] == 1 and mask.is_floating_point()


def _described(batch: Any, keys: list[Any]) -> str:
    return f"which has {keys}" if keys else f"a {type(batch).__name__}; pass a function of the batch"
