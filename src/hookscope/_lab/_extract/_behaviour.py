"""What changes a model's values beside its parameters and buffers: edits that are on, and plain attributes of its modules."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from ..._taps._inventory import modules
from .._edit._editor import Spot
from .._edit._hook import EditHook
from .._edit._op import Op
from .._edit._plan import Target
from ._fingerprint import content

_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.Size)
_PASSING = {"training"}  # told by the mode


def edits_on(model: nn.Module) -> list[str]:
    """Each edit of a forward that is on, as text that is the same for the same ops: `encoder.3:output: hs.scale(0.5)`."""
    found = [
        f"{target.site.name}: {one.op!r}{_numbers(one.op)}"
        for named in modules(model)
        for target in _targets(named.module)
        for one in target.planned
    ]
    return list(dict.fromkeys(found))


def attributes(model: nn.Module) -> str:
    """A digest of the numbers, truth values and texts that modules hold as attributes (`eps`, a factor), those with a leading _ apart."""
    digest = hashlib.blake2b(digest_size=8)
    for named in modules(model):
        for name, value in sorted(vars(named.module).items()):
            if not name.startswith("_") and name not in _PASSING and _is_plain(value):
                digest.update(f"{named.path} {name} {value!r}\n".encode())
    return digest.hexdigest()


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple | list) and len(value) <= 64 and all(map(_is_plain, value)))


def _targets(module: nn.Module) -> Iterator[Target]:
    for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
        if isinstance(hook, EditHook) and isinstance(hook.action, partial) and hook.action.args and isinstance(hook.action.args[0], Spot):
            spot = hook.action.args[0]
            yield from (target for target in (spot.input, spot.output) if target is not None)


def _numbers(op: Op) -> str:
    """A digest of the tensors an op holds, which its text names by their shape alone."""
    tensors = list(_tensors([getattr(op, field.name) for field in dataclasses.fields(op)]))
    if not tensors:
        return ""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode() + content(tensor.detach()))
    return f" {digest.hexdigest()}"


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, np.ndarray) and value.dtype != object:
        yield torch.from_numpy(np.ascontiguousarray(value))
    elif isinstance(value, torch.Tensor):
        yield value
    elif hasattr(value, "values") and callable(value.values):
        yield from _tensors(list(value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
