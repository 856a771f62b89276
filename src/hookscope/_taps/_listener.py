"""What somebody who listens to the process is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Backward:
    """One call of backward: from where; the factor that a GradScaler has put on the loss (None: none); whether its graph is kept to be
    differentiated once more.
    """

    roots: tuple[torch.Tensor, ...]
    scale: torch.Tensor | None = None
    create_graph: bool = False


class Listener(Protocol):
    """Told of events in the order they happen; whatever it raises reaches the user's program, so it must mean to."""

    def backward_nears(self) -> None:
        """`Tensor.backward` was called, and nobody has been told of it yet: neither a mode nor a subclass."""

    def backward_begins(self, backward: Backward) -> None:
        """A backward pass is about to start."""

    def backward_ends(self, failed: bool) -> None:
        """It is over."""

    def attempt_begins(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        """`optimizer.step` was called; parameters are still what the forward used."""

    def evaluated(self, optimizer: torch.optim.Optimizer) -> None:
        """The closure that its step was given has been called once more, if `hears_closures`."""

    @property
    def hears_closures(self) -> bool:
        """Whether the closure is to be wrapped, so that `evaluated` is told."""

    def attempt_ends(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        """`optimizer.step` is about to return."""

    def attempt_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """A GradScaler found Inf or NaN and did not call `optimizer.step` at all."""

    @property
    def shortcut(self) -> Shortcut | None:
        """Asked before anything is told, while nobody else listens."""


class Shortcut(Protocol):
    """Each says whether the event was as usual, and has been dealt with: only if not is the listener told of it."""

    def backward_begins(self, root: torch.Tensor) -> bool:
        """`root.backward()` was called, with nothing else to be said of it; neither a mode nor a subclass has been told."""

    def backward_ends(self) -> bool:
        """That is over, and has not failed."""

    def attempt_begins(self, optimizer: torch.optim.Optimizer) -> bool:
        """`optimizer.step()` was called."""

    def attempt_ends(self, optimizer: torch.optim.Optimizer) -> bool:
        """It is about to return."""
