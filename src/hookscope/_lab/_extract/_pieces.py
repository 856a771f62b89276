"""From the tensors of a batch to what is stored: rows of numpy, one a sample, or sequences without their padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..._core._errors import UsageError
from ..._features._batch import Piece
from ._key import Key

Mask = Callable[[Any], torch.Tensor] | str
_BITS = {1: torch.uint8, 2: torch.int16}


def pieces(found: Mapping[Key, torch.Tensor], samples: int, mask: torch.Tensor | None) -> tuple[Piece, ...]:
    """One piece a key. Raises `UsageError` for a tensor whose first dimension is not that of the samples."""
    return tuple(_piece(key, tensor, samples, mask) for key, tensor in found.items())


def _piece(key: Key, tensor: torch.Tensor, samples: int, mask: torch.Tensor | None) -> Piece:
    if key.site.kind in ("param", "param_grad"):
        raise UsageError(f"{key} has no samples, so it is no feature of a dataset: extract it by itself, without to=")
    if not tensor.dim() or tensor.shape[0] != samples:
        raise UsageError(
            f"{key} has shape {tuple(tensor.shape)} for a batch of {samples} samples, and its first dimension must be theirs: "
            "give a function as pool= that puts it there, such as pool=lambda t: t.transpose(0, 1)"
        )
    dtype, values = str(tensor.dtype).removeprefix("torch."), _array(key, tensor)
    if mask is None or not fits(tensor, mask):
        return Piece(key.site, key.call, dtype, values)
    kept = mask.numpy()
    return Piece(key.site, key.call, dtype, values[kept], kept.sum(1, dtype=np.int64))


def _array(key: Key, tensor: torch.Tensor) -> Any:
    """On the CPU, in the bits that are stored; the same memory where it is there already."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise UsageError(f"{key} is no ordinary dense tensor: give a function as pool= that makes one, such as pool=lambda t: t.to_dense()")
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    if plain.dtype is torch.bfloat16:
        return plain.contiguous().view(torch.int16).numpy().view(np.uint16)
    if str(plain.dtype).startswith("torch.float8"):
        return plain.contiguous().view(torch.uint8).numpy()
    return plain.numpy()


def fits(tensor: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether the mask is about it: (samples, positions, channels), since in other shapes the numbers may agree by chance."""
    return tensor.dim() == 3 and tensor.shape[:2] == mask.shape


def mask_of(batch: Any, asked: Mask | None, found: Mapping[Key, torch.Tensor]) -> torch.Tensor | None:
    """The mask of a batch as (samples, positions) of truth on the CPU. Raises `UsageError` where it fits nothing that was found."""
    if asked is None:
        return None
    given = asked(batch) if callable(asked) else _named(batch, asked)
    mask = torch.as_tensor(given).detach().cpu()
    if not any(fits(tensor, mask) for tensor in found.values()):
        shapes = ", ".join(f"{key} {tuple(tensor.shape)}" for key, tensor in list(found.items())[:5])
        raise UsageError(f"the mask has shape {tuple(mask.shape)} and is for (samples, positions, channels), but there is only {shapes}")
    return mask.bool()


def _named(batch: Any, name: str) -> Any:
    if not isinstance(batch, Mapping) or name not in batch:
        there = f"has {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else f"is a {type(batch).__name__}"
        raise UsageError(f"{name!r} is to be found in each batch, which {there}: give the name of an entry, or a function of a batch")
    return batch[name]
