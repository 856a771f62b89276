"""How many samples a batch has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from ..._taps._leaves import leaves
from .._batch import is_arguments


def count_samples(batch: Any, features: Iterator[torch.Tensor]) -> int:
    """How many samples a batch has: the first dimension of its first tensor that has one, else of the first feature."""
    first = batch[0] if is_arguments(batch) and batch else batch
    if isinstance(first, PackedSequence):  # its tensor has one row for each step of each sample
        return int(first.batch_sizes[0])
    for _, tensor in leaves(batch):
        if tensor.dim():
            return int(tensor.shape[0])
    return next((int(tensor.shape[0]) for tensor in features if tensor.dim()), 0)
