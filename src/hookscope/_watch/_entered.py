"""The buffers of each model that a forward has entered, for as long as the model lives."""

from __future__ import annotations

import weakref

from torch import nn

from .._origin._forward import Buffers


class Entered(weakref.WeakKeyDictionary[nn.Module, Buffers]):
    """`of` gives those of a model, which are looked for when it is entered first."""

    _latest: tuple[weakref.ref[nn.Module], weakref.ref[Buffers]] | None = None

    def of(self, model: nn.Module, *, silent: bool) -> Buffers:
        """The model's; `silent`: see `Buffers`."""
        if self._latest is not None and self._latest[0]() is model and (latest := self._latest[1]()) is not None:
            return latest  # as most often, at a fraction of the price
        if (buffers := self.get(model)) is None:
            self[model] = buffers = Buffers(model, silent=silent)
        self._latest = weakref.ref(model), weakref.ref(buffers)
        return buffers

    def clear(self) -> None:
        """Forget them all."""
        self._latest = None
        super().clear()
