"""What must be the same for an extraction to be gone on with: the model, what is taken from it, and how."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..._core._select import Selectable, describe
from ..._core._term import Predicate
from ._behaviour import attributes, edits_on
from ._fingerprint import model_digest
from ._options import Options
from ._pool import Pool
from ._store import Store

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def identity(model: nn.Module, select: Selectable, options: Options, store: Store) -> dict[str, Any]:
    """By the names a person knows them by, as JSON holds them."""
    return {
        "model": f"{type(model).__name__} {model_digest(model)}",
        "attributes": attributes(model),
        "edits": edits_on(model),
        "mode": _mode(model),
        "autocast": _autocast(),
        "selection": describe(select),
        "call": options.call,
        "dtype": None if options.dtype is None else str(options.dtype),
        "pool": _pooling(options.pool),
        "forward": None if options.forward is None else _function(options.forward),
        "mask": _function(store.mask) if callable(store.mask) else store.mask,
    }


def _mode(model: nn.Module) -> str:
    modes = {module.training for module in model.modules()}
    return "partly training" if len(modes) > 1 else "training" if modes == {True} else "eval"


def _autocast() -> str | None:
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return ", ".join(f"{kind} {torch.get_autocast_dtype(kind)}" for kind in kinds) or None


def _pooling(pool: Any) -> Any:
    if isinstance(pool, Mapping):
        return {str(describe(selection)): _pooling(one) for selection, one in pool.items()}
    if isinstance(pool, Pool):
        mask = f"a mask of shape {tuple(pool.mask.shape)}" if isinstance(pool.mask, torch.Tensor) else pool.mask
        return f"{pool.how}:{pool.layout or ''} {mask or ''}".strip(": ")
    return pool if pool is None or isinstance(pool, str) else _function(pool)


def _function(function: Any) -> str:
    if isinstance(function, nn.Module):
        return _ADDRESS.sub("", repr(function))
    return Predicate(function).title
