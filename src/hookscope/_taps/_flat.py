"""Parameters that the first FSDP has flattened and cut: which elements of which parameter a rank holds."""

from __future__ import annotations

import math
from typing import Any

from torch import nn


def pieces(model: nn.Module) -> dict[int, dict[str, Any]]:
    """By the id of a parameter, what its site says: the shape of the whole, `part` with the first element and how many, how many are held.

    With `use_orig_params=False` there is but one parameter a wrapper, cut into equal parts, of which the last is filled up with zeros.
    """
    found: dict[int, dict[str, Any]] = {}
    for module in model.modules():
        handle: Any = getattr(module, "_handle", None)
        flat = getattr(handle, "flat_param", None)
        if isinstance(flat, nn.Parameter) and getattr(handle, "uses_sharded_strategy", False):
            found |= _originals(flat) if getattr(flat, "_params", None) else {id(flat): _equal_part(handle, flat.numel())}
    return found


def _originals(flat: Any) -> dict[int, dict[str, Any]]:
    return {
        id(parameter): _piece(tuple(shape), info)
        for parameter, shape, info in zip(flat._params, flat._shapes, flat._shard_param_infos, strict=True)
    }


def _piece(shape: tuple[int, ...], info: Any) -> dict[str, Any]:
    numel, held = math.prod(shape), info.numel_in_shard or 0
    part = "" if held == numel else f"flat:{info.intra_param_start_idx or 0}+{held}"
    return {"shape": shape, "numel": numel, "part": part, "held": held}


def _equal_part(handle: Any, held: int) -> dict[str, Any]:
    size = int(handle.world_size)
    return {"shape": (size * held,), "numel": size * held, "part": f"0:{handle.rank}/{size}" if size > 1 else "", "held": held}
