"""A model's facts that are no activations: its modules with their simple attributes, its parameters and buffers by fingerprint."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch
from torch import nn

from ... import __version__
from ..._taps._inventory import bases, clean, every_name, is_lazy, modules
from ._book import Described
from ._prints import Print, fingerprint, plain
from ._running import Side

_SKIPPED = frozenset({"in_features", "out_features", "call_super_init", "dump_patches"})


def described(model: nn.Module) -> dict[str, Described]:
    """Every module by path."""
    inside = modules(model)
    return {m.path: Described(m.path, bases(m.module), attributes(m.module), not any(True for _ in m.module.children())) for m in inside}


def attributes(module: nn.Module) -> dict[str, Any]:
    """Public attributes that are numbers, truth values, text, sizes, dtypes or functions, in JSON's types."""
    found = {name: _simple(value) for name, value in vars(module).items() if not name.startswith("_") and name not in _SKIPPED}
    return {name: value for name, value in found.items() if value is not None}


def _simple(value: Any) -> Any:
    if isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, (tuple, list)) and len(value) <= 8 and all(isinstance(v, (bool, int, float, str)) for v in value):
        return tuple(value)
    if isinstance(value, torch.dtype):
        return str(value)
    return value.__name__ if isinstance(value, FunctionType) or type(value).__name__ == "builtin_function_or_method" else None


def named_tensors(model: nn.Module, kind: str) -> Iterator[tuple[str, torch.Tensor]]:
    """`parameters` or `buffers` under every clean name, those of tied ones, too."""
    for name, tensor in every_name(getattr(model, f"named_{kind}")):
        if not is_lazy(tensor):
            yield clean(model, name), tensor


def prints(model: nn.Module, kind: str) -> dict[str, Print]:
    """The fingerprints of all parameters or buffers, a tied one made once."""
    made: dict[int, Print] = {}
    found = {}
    for name, tensor in named_tensors(model, kind):
        if id(tensor) not in made:
            made[id(tensor)] = fingerprint(plain(tensor))
        found[name] = made[id(tensor)]
    return found


def facts(side: Side) -> dict[str, Any]:
    """Who, where, with what."""
    model = side.inner
    devices = sorted({str(t.device) for t in [*model.parameters(), *model.buffers()]})
    versions = {"hookscope": __version__, "torch": torch.__version__, "python": sys.version.split()[0]}
    return {"model": type(model).__name__, "devices": devices, "training": model.training, "compiled": side.compiled, **versions}
