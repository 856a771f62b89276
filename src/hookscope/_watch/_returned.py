"""A module has returned: the most common case without a detour, in C where that was compiled."""

from __future__ import annotations

import time
from _thread import get_ident
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .._taps._modes import is_special
from ._fields import NATIVE
from ._filling import fill
from ._tap import Tap

if TYPE_CHECKING:
    from ._activations import Activations


def returned(tap: Tap, owner: Activations, otherwise: Callable[..., None]) -> Callable[..., None]:
    """What to call with a module, its arguments, its keywords if torch has them, and its output. All but the common case goes to
    `otherwise`.
    """
    if NATIVE is not None:
        native: Callable[..., None] = NATIVE.Returned(tap, owner, otherwise)
        return native

    def call(*given: Any) -> None:
        if not saw(tap, owner, given):
            otherwise(*given)

    return call


def saw(tap: Tap, owner: Activations, given: tuple[Any, ...]) -> bool:
    """The first call of a module in a forward that nothing interferes with, and one tensor. False if it is another case: nothing is done
    then.
    """
    slot, output = tap.first, given[-1]
    if not owner.on or slot is None or tap.calls or owner.lane != get_ident() or type(output) is not torch.Tensor or is_special():
        return False
    began = time.perf_counter_ns()
    try:
        if owner.viewed is not None:
            owner.called()
        owner.touched.append(tap)
        tap.calls, tap.fired = 1, True
        fill(owner, tap, slot, output, given)
    except Exception as error:
        owner.fail(error)
    owner.spent += time.perf_counter_ns() - began
    return True
