"""What is to be done with each tensor that is extracted, checked before any hook is placed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from ..._core._errors import UsageError
from ..._core._names import near
from .._batch import Forward
from ._pool import Pooling, check_pooling


@dataclass(frozen=True, slots=True)
class Options:
    """The keywords of `extract` and `capture`, which document them."""

    call: int | Literal["all"] = "all"
    to_device: torch.device | str | None = None
    dtype: torch.dtype | str | None = None
    clone: bool | Literal["auto"] = "auto"
    pool: Pooling | None = None
    stop: bool | Literal["auto"] = "auto"
    grad: bool = False
    forward: Forward | None = None

    def checked(self) -> Options:
        """The same with device and dtype as torch has them. Raises `UsageError` for what cannot be right."""
        _check_call(self.call)
        _check_flag("clone", self.clone)
        _check_flag("stop", self.stop)
        if not isinstance(self.grad, bool):
            raise UsageError(f"grad={self.grad!r} is neither True (tensors keep their graph) nor False (they are detached)")
        if self.forward is not None and not callable(self.forward):
            raise UsageError(f"forward={self.forward!r} cannot be called: give a function of the model and a batch, or None")
        check_pooling(self.pool)
        return replace(self, to_device=_device(self.to_device), dtype=_dtype(self.dtype))


def _check_call(call: object) -> None:
    if call != "all" and (not isinstance(call, int) or isinstance(call, bool) or call < 0):
        raise UsageError(f"call={call!r} is no call of a module: give 'all', or one call as a whole number from 0")


def _check_flag(name: str, value: object) -> None:
    if not (isinstance(value, bool) or value == "auto"):
        raise UsageError(f"{name}={value!r} is none of True, False and 'auto'")


def _device(device: torch.device | str | None) -> torch.device | None:
    try:
        return None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"to_device={device!r} is no device, such as 'cpu' or 'cuda:0'") from error


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else None
    if not isinstance(found, torch.dtype):
        known = [name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)]
        raise UsageError(f"dtype={dtype!r} is no dtype: did you mean {' or '.join(map(repr, near(str(dtype), known))) or repr('float16')}?")
    return found
