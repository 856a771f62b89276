"""Sees each call of `scaled_dot_product_attention` while somebody listens, whoever makes it, and changes none.

A function mode would see them too, but at the price of a call in Python for every function of torch, and not those from within other
functions of torch, as that of `nn.MultiheadAttention`. So the function itself is replaced, in each module that has it under its name, and
put back when the last listener leaves.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from torch.nn import functional

Told = Callable[[Mapping[str, Any]], None]
NAME = "scaled_dot_product_attention"
ORIGINAL = functional.scaled_dot_product_attention
NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")

_lock = threading.Lock()
_listeners: list[Told] = []
_replaced: list[ModuleType] = []


@functools.wraps(ORIGINAL)
def heard(*args: Any, **kwargs: Any) -> Any:
    """The function, and then what listens to it."""
    result = ORIGINAL(*args, **kwargs)
    given = {**dict(zip(NAMES, args, strict=False)), **kwargs}
    for told in tuple(_listeners):
        told(given)
    return result


@contextmanager
def listening(told: Told) -> Iterator[None]:
    """While this lasts, `told` gets the arguments of each call, by name, in whatever thread."""
    with _lock:
        if not _listeners:
            _replace()
        _listeners.append(told)
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(told)
            if not _listeners:
                _put_back()


def _replace() -> None:
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and not name.startswith(("torch._C", __name__)) and vars(module).get(NAME) is ORIGINAL:
            setattr(module, NAME, heard)
            _replaced.append(module)


def _put_back() -> None:
    while _replaced:
        module = _replaced.pop()
        if vars(module).get(NAME) is heard:
            setattr(module, NAME, ORIGINAL)
