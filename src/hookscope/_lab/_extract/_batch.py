"""How a batch reaches the model, and what is one batch or many."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..._core._errors import UsageError
from ._options import Forward


def is_loader(inputs: Any) -> bool:
    """Whether `inputs` gives batches one after the other: a `DataLoader`, a generator; a tensor, tuple, list or dict is one batch."""
    return isinstance(inputs, Iterable) and not isinstance(inputs, torch.Tensor | tuple | list | Mapping | str) and not callable(inputs)


def batches(loader: Iterable[Any]) -> Iterator[Any]:
    """The batches of a loader. Raises `UsageError` where there is none."""
    empty = True
    for batch in loader:
        empty = False
        yield batch
    if empty:
        raise UsageError(f"the loader, a {type(loader).__name__}, gave no batch: it is empty, or was used up before")


def run_model(model: nn.Module, batch: Any, forward: Forward | None) -> None:
    """Call the model with a batch.

    By `forward` where it is given; a function without arguments is called; a mapping gives keyword arguments; a tuple or list positional
    ones, except a namedtuple (such as a `PackedSequence`), which like everything else is the one argument.
    """
    if forward is not None:
        forward(model, batch)
    elif isinstance(batch, Mapping):
        _spread(model, (), batch)
    elif isinstance(batch, tuple | list) and not hasattr(batch, "_fields"):
        _spread(model, batch, {})
    elif callable(batch) and not isinstance(batch, torch.Tensor):
        batch()
    else:
        model(batch)


def _spread(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    try:
        model(*args, **kwargs)
    except TypeError as error:
        try:
            inspect.signature(model.forward).bind(*args, **kwargs)
        except TypeError as misfit:
            given = f"{len(args)} positional" if args else f"the keyword arguments {', '.join(kwargs)}"
            raise UsageError(
                f"the batch was given to {type(model).__name__}.forward as {given}{' arguments' if args else ''}, which it does not take "
                f"({misfit}): say what is its input, as in forward=lambda model, batch: model(batch[0])"
            ) from error
        raise


def is_direct(batch: Any, forward: Forward | None) -> bool:
    """Whether the model itself is what is called, so that nothing of the user's runs after it."""
    return forward is None and (isinstance(batch, torch.Tensor | tuple | list | Mapping) or not callable(batch))
