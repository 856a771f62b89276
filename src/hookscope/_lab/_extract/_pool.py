"""Pools: one vector per sample from a tensor that has positions, such as pixels or tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import nn

from ..._core._errors import UsageError
from ..._core._names import near
from ..._core._select import select
from ._layout import checked_layout, layout_of

How = Literal["mean", "max", "cls", "last", "flatten"]
_HOW: tuple[How, ...] = get_args(How)


@dataclass(frozen=True, slots=True)
class Pool:
    """How the positions of a tensor become one vector per sample.

    `how` is `mean` or `max` over the positions, `cls` for the first, `last` for the last one, `flatten` for all of them in a row.
    `layout` names the dimensions, N the batch, C the channels, any other letter a position: `"NHWC"`. None takes what the module declares
    (`output_fmt`, `batch_first`) or its class is known for; three dimensions of any other module are `"NLC"`, and four have to be told.
    `mask` is true where a position counts, of shape (N, positions...) in the order the tensor has them: a tensor, or the name of it in a
    batch that is a dict, `"attention_mask"`. A sample without any such position becomes NaN with `mean`, minus infinity with `max`.
    A tensor of at most two dimensions stays what it is. The states of an LSTM or GRU, (layers, N, C), are pooled over the layers, without
    the mask.

    Returns (N, C); (N, everything else) with `flatten`.

    >>> import torch
    >>> from torch import nn
    >>> import hookscope as hs
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    >>> hs.extract(model, torch.ones(4, 3, 9, 9), "*", pool=hs.Pool("mean", layout="NCHW"))["1"].shape
    torch.Size([4, 8])
    """

    how: How
    layout: str | None = None
    mask: str | torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.how not in _HOW:
            close = near(str(self.how), _HOW)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(f"pool {self.how!r} is unknown: {hint}choose one of {', '.join(_HOW)}, or give a function of a tensor")
        if self.layout is not None:
            checked_layout(self.layout)

    def of(self, tensor: torch.Tensor, module: nn.Module, batch: Any = None) -> torch.Tensor:
        """`tensor`, which `module` returned for `batch`, pooled."""
        layout = self.layout or layout_of(module, tensor.dim())
        if tensor.dim() < 2 or (tensor.dim() == 2 and self.layout is None):
            return tensor
        if layout is None or len(layout) != tensor.dim():
            raise UsageError(self.untold(tensor, module, layout))
        order = [layout.index("N"), *(i for i, letter in enumerate(layout) if letter not in "NC"), layout.index("C")]
        if self.how == "flatten":
            return tensor.movedim(order[0], 0).flatten(1)
        found = tensor.permute(order)
        return _POOLS[self.how](found.flatten(1, -2), self._counting(found, batch))

    def untold(self, tensor: torch.Tensor, module: nn.Module, layout: str | None) -> str:
        """What is asked where nobody has said which dimension is which."""
        what = f"a {type(module).__name__} gave a tensor of shape {tuple(tensor.shape)}"
        if layout is not None:
            return f"layout {layout!r} has {len(layout)} dimensions, and {what}: write one letter for each dimension"
        known = {3: ("NLC", "NCL"), 4: ("NCHW", "NHWC"), 5: ("NCDHW", "NDHWC")}.get(tensor.dim(), ("NCHW", "NHWC"))
        return (
            f"{what}, and nothing says which of its dimensions are the channels: "
            f"write pool={f'{self.how}:{known[0]}'!r} or pool={f'{self.how}:{known[1]}'!r}"
        )

    def _counting(self, found: torch.Tensor, batch: Any) -> torch.Tensor | None:
        """The mask as (N, positions), or None where every position counts."""
        mask = self.mask
        if isinstance(mask, str):
            if not isinstance(batch, Mapping) or mask not in batch:
                there = ", ".join(map(repr, batch)) if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
                raise UsageError(f"mask={mask!r} is to be found in the batch, which is {there}: give its name in a batch that is a dict")
            mask = batch[mask]
        if mask is None:
            return None
        if not isinstance(mask, torch.Tensor) or mask.shape != found.shape[:-1]:
            shape = tuple(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
            raise UsageError(f"the mask has shape {shape}, and there are {tuple(found.shape[:-1])} samples and positions")
        return mask.to(found.device).bool().flatten(1)


def _mean(x: torch.Tensor, counts: torch.Tensor | None) -> torch.Tensor:
    if counts is None:
        return x.mean(1)
    # what is masked may be NaN or Inf, so it is left out rather than multiplied by zero; the sum is in full precision
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return (wide.masked_fill(~counts[..., None], 0).sum(1) / counts.sum(1, keepdim=True)).to(x.dtype)


def _max(x: torch.Tensor, counts: torch.Tensor | None) -> torch.Tensor:
    return x.amax(1) if counts is None else x.masked_fill(~counts[..., None], float("-inf")).amax(1)


def _cls(x: torch.Tensor, counts: torch.Tensor | None) -> torch.Tensor:
    return x[:, 0] if counts is None else _at(x, counts.int().argmax(1))


def _last(x: torch.Tensor, counts: torch.Tensor | None) -> torch.Tensor:
    return x[:, -1] if counts is None else _at(x, counts.shape[1] - 1 - counts.flip(1).int().argmax(1))


def _at(x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    return x[torch.arange(x.shape[0], device=x.device), position]


_POOLS: dict[str, Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]] = {"mean": _mean, "max": _max, "cls": _cls, "last": _last}
One: TypeAlias = Pool | str | Callable[[torch.Tensor], torch.Tensor]
Pooling: TypeAlias = One | Mapping[Any, One]


def as_pool(pool: One) -> Pool | Callable[[torch.Tensor], torch.Tensor]:
    """A pool by its name, `"mean"` or `"mean:NHWC"`, or what it is already. Raises `UsageError` for what is none."""
    if isinstance(pool, str):
        how, _, layout = pool.partition(":")
        return Pool(how, layout or None)  # type: ignore[arg-type] # checked there
    if not callable(pool) and not isinstance(pool, Pool):
        raise UsageError(f"pool={pool!r} is no pool: give one of {', '.join(map(repr, _HOW))}, a Pool, or a function of a tensor")
    return pool


def check_pooling(pool: Pooling | None) -> None:
    """Raises `UsageError` for what is no pool, nor a mapping of selections to pools."""
    for one in pool.values() if isinstance(pool, Mapping) else [] if pool is None else [pool]:
        as_pool(one)
    for selection in pool if isinstance(pool, Mapping) else ():
        select(selection)
