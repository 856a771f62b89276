"""How a batch is given to a model, and what is one batch or many: one rule for all that runs a model.

A tensor is the one argument, a tuple or list the positional arguments, a mapping the keyword arguments; a function without arguments is
called; everything else, a namedtuple such as a `PackedSequence` too, is the one argument. What a batch has beside the inputs (labels, ids)
is left out: of a mapping the keys that forward has no argument for; of a tuple or list what is behind the positional arguments without a
default, at least one, where it comes from a loader or does not fit as it is. Tensors go to the device of the model if it has only one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only
from torch.utils.data import Dataset, IterableDataset

from .._core._errors import UsageError
from ._inner import inner

Forward = Callable[[nn.Module, Any], object]
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
MISSPELT = 0.85  # how alike a key and an argument are that are taken for the same


class Feed:
    """Runs a model on batches, by `forward(model, batch)` where that is given."""

    def __init__(self, model: nn.Module, forward: Forward | None = None) -> None:
        if forward is not None and not callable(forward):
            raise UsageError(f"forward={forward!r} cannot be called: give a function of the model and a batch, or None")
        self._model, self._forward = model, forward
        self._signature = _signature(inner(model))
        parameters = list(self._signature.parameters.values()) if self._signature else []
        self._count = max(1, sum(p.kind in POSITIONAL and p.default is p.empty for p in parameters))
        takes_any = not parameters or any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._names = None if takes_any else [p.name for p in parameters]
        devices = {p.device for p in model.parameters()}
        self._device = devices.pop() if len(devices) == 1 else None

    def run(self, batch: Any, *, alone: bool = True) -> Any:
        """What the model returns; `alone` says that the batch was given by itself, and not by a loader.

        Raises `UsageError` for a batch that forward does not take.
        """
        if self._forward is not None:
            return self._forward(self._model, batch)
        if isinstance(batch, Mapping):
            return self._called((), self._named(batch))
        if is_arguments(batch):
            whole = alone and self._misfit(batch, {}) is None
            return self._called(tuple(batch if whole else batch[: self._count]), {})
        if callable(batch) and not isinstance(batch, torch.Tensor):
            return batch()
        return self._model(self._moved(batch))

    def _named(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        names = self._names
        taken = {name: value for name, value in batch.items() if names is None or name in names}
        for name in batch.keys() - taken.keys():
            free = [other for other in names or () if other not in taken]
            if meant := get_close_matches(str(name), free, 1, MISSPELT):
                raise UsageError(f"{type(self._model).__name__}.forward has no argument {name!r}: did you mean {meant[0]!r}?")
        if batch and not taken:
            raise UsageError(
                f"{type(self._model).__name__}.forward takes none of the batch's keys, {', '.join(map(repr, batch))}: "
                f"say what is its input, as in forward=lambda model, batch: model(batch[{next(iter(batch))!r}])"
            )
        return taken

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (misfit := self._misfit(args, kwargs)) is not None:
            given = f"{len(args)} positional arguments" if args else f"the keyword arguments {', '.join(kwargs)}"
            raise UsageError(
                f"the batch was given to {type(self._model).__name__}.forward as {given}, which it does not take ({misfit}): "
                "say what is its input, as in forward=lambda model, batch: model(batch[0])"
            )
        return self._model(*self._moved(args), **self._moved(kwargs))

    def _misfit(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> TypeError | None:
        try:
            if self._signature is not None:
                self._signature.bind(*args, **kwargs)
        except TypeError as misfit:
            return misfit
        return None

    def _moved(self, given: Any) -> Any:
        return given if self._device is None else tree_map_only(torch.Tensor, self._to_device, given)

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True)


def is_arguments(batch: Any) -> bool:
    """Whether a batch is several positional arguments: a tuple or list, but no namedtuple."""
    return isinstance(batch, tuple | list) and not hasattr(batch, "_fields")


def is_direct(batch: Any, forward: Forward | None) -> bool:
    """Whether the model itself is what is called, so that nothing of the user's runs after it."""
    return forward is None and (isinstance(batch, torch.Tensor | tuple | list | Mapping) or not callable(batch))


def is_loader(inputs: Any) -> bool:
    """Whether `inputs`, which may be one batch, gives many, one after the other: a `DataLoader`, a generator, a list of whole batches.

    A tensor, tuple or dict is one batch, and so is a list as a `DataLoader` makes them, of tensors: their positions are arguments.
    """
    if isinstance(inputs, list):
        return bool(inputs) and all(isinstance(part, Mapping | tuple | list) for part in inputs)
    return isinstance(inputs, Iterable) and not isinstance(inputs, torch.Tensor | tuple | Mapping | str) and not callable(inputs)


def batches(loader: Any) -> Iterable[Any]:
    """The batches of what gives many, a list too; a tensor, tuple or dict is the only one. Raises `UsageError` for what gives none."""
    if is_alone(loader):
        return [loader]
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise UsageError(f"a {type(loader).__name__} gives samples one by one: pass torch.utils.data.DataLoader(dataset, batch_size=...)")
    if not isinstance(loader, Iterable) or isinstance(loader, str):
        raise UsageError(f"a {type(loader).__name__} gives no batches: pass a DataLoader, or any iterable of batches")
    return loader


def is_alone(loader: Any) -> bool:
    """Whether what may be a loader is one batch by itself."""
    return isinstance(loader, torch.Tensor | tuple | Mapping)


def some(loader: Iterable[Any]) -> Iterator[Any]:
    """The same batches. Raises `UsageError` at the end where there was none."""
    empty = True
    for batch in loader:
        empty = False
        yield batch
    if empty:
        raise UsageError(f"the loader, a {type(loader).__name__}, gave no batch: it is empty, or was used up before")


def first(inputs: Any) -> tuple[Any, bool]:
    """One batch, and whether it was given by itself: of a loader its first."""
    return (next(some(inputs)), False) if is_loader(inputs) else (inputs, True)


def _signature(model: nn.Module) -> inspect.Signature | None:
    try:
        return inspect.signature(model.forward)
    except (TypeError, ValueError):  # a forward that is not written in Python
        return None
