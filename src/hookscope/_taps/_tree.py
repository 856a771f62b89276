"""Notices when modules or parameters are put into a module: a head is replaced, adapters are injected, weights are assigned."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

# Held here, too: a handle finds its hook through a weak reference, and in garbage that is dead before a finalizer could use it.
_in_place: set[RemovableHandle] = set()


def on_registration(told: Callable[[nn.Module], None]) -> Callable[[], None]:
    """Call the method `told`, held weakly, with the module that something is registered in, until the returned function is called.

    Costs nothing while no module is built or changed. A direct write to `_modules` or `_parameters` is not noticed.
    """
    method = weakref.WeakMethod(told)

    def registered(holder: nn.Module, *_: Any) -> None:
        with contextlib.suppress(Exception):  # the program is in the middle of an assignment of its own
            if (call := method()) is not None:
                call(holder)

    handles = (
        torch_module.register_module_module_registration_hook(registered),
        torch_module.register_module_parameter_registration_hook(registered),
    )
    _in_place.update(handles)

    def remove() -> None:
        for handle in handles:
            handle.remove()
            _in_place.discard(handle)

    return remove
