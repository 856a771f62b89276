"""Where the hooks of one module sit: they can be taken off while nothing is read, and put on again."""

from __future__ import annotations

import weakref

from torch import nn
from torch.utils.hooks import RemovableHandle

from .._taps._hook import Hook


class Seat:
    """`after` is called with what the module returns; `before`, if any, with what it is given. Put on again they come after others."""

    def __init__(self, module: nn.Module, after: Hook, before: Hook | None = None) -> None:
        self._module = weakref.ref(module)
        self._after, self._before = after, before
        self._handles: list[RemovableHandle] = []

    def take(self) -> None:
        """Put them on."""
        module = self._module()
        if module is None or self._handles:
            return
        self._handles.append(module.register_forward_hook(self._after, with_kwargs=True))
        if self._before is not None:
            self._handles.append(module.register_forward_pre_hook(self._before, with_kwargs=True))

    def leave(self) -> None:
        """Take them off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
