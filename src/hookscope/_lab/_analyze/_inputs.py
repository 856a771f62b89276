"""From a batch of a loader to the arguments of a model, and to the mask of what is padding."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from ..._core._errors import UsageError
from ..._core._names import near

MaskOf: TypeAlias = "str | Callable[[Any], torch.Tensor | None] | bool | None"
AUTOMATIC = "attention_mask"


def batches(loader: Any) -> Iterable[Any]:
    """The batches; one tensor, tuple or dict by itself is one batch."""
    if isinstance(loader, torch.Tensor | Mapping | tuple):
        return [loader]
    if not isinstance(loader, Iterable):
        raise UsageError(f"loader is a {type(loader).__name__}: pass something to iterate over that gives batches, or one batch")
    return loader


def call(model: nn.Module, batch: Any, inputs: Callable[[Any], Any] | None) -> None:
    """Run the model on a batch."""
    if inputs is not None:
        chosen = inputs(batch)
        args, kwargs = ((), dict(chosen)) if isinstance(chosen, Mapping) else (chosen if isinstance(chosen, tuple) else (chosen,), {})
    else:
        args, kwargs = arguments(model, batch)
    model(*args, **kwargs)


def arguments(model: nn.Module, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a model takes of a batch: of a dict the keys that its forward names, of a tuple as many as it requires, the rest are labels."""
    parameters = _parameters(model)
    if isinstance(batch, Mapping):
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
        names = {p.name for p in parameters}
        taken = {k: v for k, v in batch.items() if open_ended or k in names}
        if not taken:
            raise UsageError(f"forward takes none of the batch's keys {list(batch)}: pick with inputs=lambda batch: ...")
        return (), taken
    if isinstance(batch, tuple | list) and batch:
        required = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        return tuple(batch[: max(1, len(required))]), {}
    return (batch,), {}


def _parameters(model: nn.Module) -> Sequence[inspect.Parameter]:
    inner = getattr(model, "_orig_mod", model)
    inner = inner.module if isinstance(inner, nn.DataParallel | nn.parallel.DistributedDataParallel) else inner
    try:
        return list(inspect.signature(inner.forward).parameters.values())
    except (TypeError, ValueError):  # scripted, or written in C
        return []


def mask_of(batch: Any, mask: MaskOf) -> torch.Tensor | None:
    """The mask of a batch, True where a position counts; None where all do."""
    found: Any = None
    if mask is None or mask is True:
        found = batch.get(AUTOMATIC) if isinstance(batch, Mapping) else None
        found = found if isinstance(found, torch.Tensor) and found.dim() == 2 else None
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
    return None if found is None else found.detach() != 0


def _described(batch: Any, keys: list[Any]) -> str:
    return f"which has {keys}" if keys else f"a {type(batch).__name__}; pass a function of the batch"
