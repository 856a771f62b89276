"""What of a loader's batch the model is given: labels and ids beside the inputs are left out."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map_only
from torch.utils.data import Dataset, IterableDataset

from ..._core._errors import UsageError
from ..._taps._leaves import leaves


class Inputs:
    """Picks the inputs out of batches, and puts them where the model is.

    Of a tuple or list the first elements, as many as the model's forward has positional arguments without a default, at least one; of a
    dict the entries that forward has an argument for, all where it takes any keyword. Everything else is passed as it is.
    """

    def __init__(self, model: nn.Module) -> None:
        parameters = _parameters(_inner(model))
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._count = max(1, sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters))
        takes_any = not parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        self._names = None if takes_any else {p.name for p in parameters}
        devices = {p.device for p in model.parameters()}
        self._device = devices.pop() if len(devices) == 1 else None

    def of(self, batch: Any) -> Any:
        """What is passed to the model."""
        if isinstance(batch, Mapping):
            batch = {name: value for name, value in batch.items() if self._names is None or name in self._names}
        elif isinstance(batch, tuple | list) and not hasattr(batch, "_fields"):
            batch = tuple(batch[: self._count])
        return batch if self._device is None else tree_map_only(torch.Tensor, self._moved, batch)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True)


def _parameters(model: nn.Module) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):  # a forward that is not written in Python
        return []


def _inner(model: nn.Module) -> nn.Module:
    """The user's own model under what wraps it, since a wrapper's forward takes anything."""
    seen = model
    while isinstance(inner := getattr(seen, "_orig_mod", None) or _wrapped(seen), nn.Module):
        seen = inner
    return seen


def _wrapped(model: nn.Module) -> nn.Module | None:
    return model.module if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel) else None


def batches_of(loader: Any) -> Iterable[Any]:
    """The batches: those of any iterable; a tensor, tuple or dict is the only one. Raises `UsageError` for what gives none."""
    if isinstance(loader, torch.Tensor | tuple | Mapping):
        return [loader]
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise UsageError(f"a {type(loader).__name__} gives samples one by one: pass torch.utils.data.DataLoader(dataset, batch_size=...)")
    if not isinstance(loader, Iterable) or isinstance(loader, str):
        raise UsageError(f"a {type(loader).__name__} gives no batches: pass a DataLoader, or any iterable of batches")
    return loader


def count_samples(batch: Any, features: Iterator[torch.Tensor]) -> int:
    """How many samples a batch has: the first dimension of its first tensor that has one, else of the first feature."""
    first = batch[0] if isinstance(batch, tuple | list) and batch and not hasattr(batch, "_fields") else batch
    if isinstance(first, PackedSequence):  # its tensor has one row for each step of each sample
        return int(first.batch_sizes[0])
    for _, tensor in leaves(batch):
        if tensor.dim():
            return int(tensor.shape[0])
    return next((int(tensor.shape[0]) for tensor in features if tensor.dim()), 0)
