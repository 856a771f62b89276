"""The attempt that is under way: whose it is, and whether another optimizer is at work within it, as in Lookahead."""

from __future__ import annotations

import weakref

import torch

from .._taps._events import is_stepping


class Attempt:
    """Call `begin` and `end`; true in between, or if a step that raised never came to its end."""

    def __init__(self) -> None:
        self._optimizer: weakref.ref[torch.optim.Optimizer] | None = None
        self._names: frozenset[str] = frozenset()
        self.used = False  # the gradients have been read as an optimizer within used them

    def begin(self, optimizer: torch.optim.Optimizer, names: frozenset[str]) -> None:
        """`optimizer` begins to step the parameters of these names."""
        self._optimizer, self._names, self.used = weakref.ref(optimizer), names, False

    def end(self) -> None:
        """It is done."""
        self._optimizer = None

    def __bool__(self) -> bool:
        return self._optimizer is not None

    def around(self, names: frozenset[str]) -> torch.optim.Optimizer | None:
        """The optimizer whose step another one, for some of the same parameters, is called in."""
        optimizer = self._optimizer() if self._optimizer is not None else None
        return optimizer if optimizer is not None and not self._names.isdisjoint(names) and is_stepping(optimizer) else None


def scale_in(optimizer: torch.optim.Optimizer) -> float:
    """The factor that is still in the gradients of a fused optimizer under a GradScaler."""
    scale = getattr(optimizer, "grad_scale", None)
    return float(scale) if isinstance(scale, torch.Tensor) else 1.0


def is_skipping(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a fused optimizer has been told by a GradScaler to leave this step out."""
    found_inf = getattr(optimizer, "found_inf", None)
    return isinstance(found_inf, torch.Tensor) and float(found_inf) > 0
