"""What one rank can run again alone: a forward that would wait for other ranks is not run, since they do not run theirs again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from .._taps._parts import is_distributed

_SPEAKING = ("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "_dtensor")


class WouldSpeakError(RuntimeError):
    """The second run came to an operation that speaks to other ranks; it was not begun."""


class _Alone(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if func.namespace in _SPEAKING:
            raise WouldSpeakError(f"{func} speaks to other ranks, which do not run it again")
        return func(*args, **(kwargs or {}))


def many_ranks() -> bool:
    """Whether this process is one of several that speak to each other."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def alone() -> AbstractContextManager[Any]:
    """Inside, an operation that speaks to other ranks raises instead of waiting for them."""
    return _Alone() if many_ranks() else nullcontext()  # type: ignore[no-untyped-call]  # torch leaves it unannotated


def gathers(module: nn.Module) -> bool:
    """Whether its forward needs other ranks for certain: parameters are spread over them, or batch statistics are shared."""
    if not many_ranks():
        return False
    return any(_spread(inner) for inner in module.modules())


def _spread(module: nn.Module) -> bool:
    speaks: Callable[[torch.Tensor], bool] = is_distributed
    own = [p for p in module._parameters.values() if p is not None]
    return (
        hasattr(module, "_get_fsdp_state")  # fully_shard
        or hasattr(module, "_fsdp_wrapped_module")
        or isinstance(module, nn.SyncBatchNorm)
        or any(map(speaks, own))
    )
