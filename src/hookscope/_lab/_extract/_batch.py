"""How a batch reaches the model, and what is one batch or many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
        model(**batch)
    elif isinstance(batch, tuple | list) and not hasattr(batch, "_fields"):
        model(*batch)
    elif callable(batch) and not isinstance(batch, torch.Tensor):
        batch()
    else:
        model(batch)


def is_direct(batch: Any, forward: Forward | None) -> bool:
    """Whether the model itself is what is called, so that nothing of the user's runs after it."""
    return forward is None and (isinstance(batch, torch.Tensor | tuple | list | Mapping) or not callable(batch))
