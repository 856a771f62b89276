"""A short mark of what a model holds, and of the batches that a loader has given so far."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from ..._taps._inventory import clean, every_name, is_lazy

_LOOKED_AT = 4096  # elements of a tensor of a batch; reading all of a large batch would cost as much as a small model
_DEPTH = 6
_WHOLE_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Marks:
    """The mark of all batches so far, each looked at in evenly spaced elements: another order, or other values, give another mark."""

    def __init__(self) -> None:
        self.mark = ""

    def add(self, batch: Any) -> str:
        """The mark with one batch more."""
        digest = hashlib.blake2b(self.mark.encode(), digest_size=16)
        for leaf in _leaves(batch, 0):
            for part in _leaf(leaf):
                digest.update(part)
        self.mark = digest.hexdigest()
        return self.mark


def _leaves(value: Any, depth: int) -> Iterator[Any]:
    """What a batch holds, in order; of an object of no known kind its tensors, since anything else in it may differ each time."""
    if depth == _DEPTH or isinstance(value, torch.Tensor | np.ndarray | str | bytes):
        yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield str(name)
            yield from _leaves(part, depth + 1)
    elif isinstance(value, tuple | list):
        yield len(value)
        for part in value:
            yield from _leaves(part, depth + 1)
    elif hasattr(value, "__dict__"):
        inside = (leaf for part in vars(value).values() for leaf in _leaves(part, depth + 1))
        yield from (leaf for leaf in inside if isinstance(leaf, torch.Tensor | np.ndarray))
    else:
        yield value


def _leaf(leaf: Any) -> Iterator[bytes]:
    if isinstance(leaf, torch.Tensor | np.ndarray):
        yield f"{leaf.dtype}{tuple(leaf.shape)}".encode()
        yield _looked_at(leaf, _LOOKED_AT)
    elif leaf is None or isinstance(leaf, str | bytes | int | float | complex):
        yield repr(leaf).encode()
    else:  # an object may write its address into its repr
        yield type(leaf).__qualname__.encode()


def _looked_at(values: Any, count: int) -> bytes:
    flat = values.detach().reshape(-1) if isinstance(values, torch.Tensor) else values.reshape(-1)
    some = flat[:: max(1, len(flat) // count)]
    if isinstance(some, np.ndarray):
        return some.tobytes() if some.dtype != object else repr(some.tolist()).encode()
    return _bytes(some)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.resolve_conj().resolve_neg().contiguous().cpu().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def model_digest(model: nn.Module) -> str:
    """A digest of names, shapes and values of all parameters and buffers: every bit counts, in a sum that is taken where the tensor lies.

    A permutation of one tensor's values is seen only where it moves one of 256 evenly spaced ones.
    """
    digest = hashlib.blake2b(digest_size=8)
    for walk in (model.named_parameters, model.named_buffers):
        for name, tensor in every_name(walk):
            digest.update(f"{clean(model, name)} {tensor.dtype}".encode())
            if not is_lazy(tensor):
                digest.update(str(tuple(tensor.shape)).encode())
                digest.update(content(tensor.detach()))
    return digest.hexdigest()


def content(tensor: torch.Tensor) -> bytes:
    """The sum of all its bits, and some of them."""
    own = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # of a DTensor, this rank's part
    try:
        flat = own.contiguous().reshape(-1)
        total = int(flat.view(_WHOLE_NUMBERS.get(flat.element_size(), torch.int32)).sum(dtype=torch.int64)) if flat.numel() else 0
        return str(total).encode() + _looked_at(flat, 256)
    except (RuntimeError, NotImplementedError, TypeError):  # quantized, nested, on meta: no bytes to be had
        return b"?"
