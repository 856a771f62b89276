"""What has been found of where things went bad, noted at the step that it belongs to."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._core._frame import Frame
from .._core._site import Site
from .._origin._verdict import Verdict
from ._locating import Locator
from ._mine import Mine
from ._tap import MicroRows
from ._upkeep import Upkeep


class Origins:
    """Asks the `locator` about a backward, and the `upkeep` of weights about an attempt; `note` is told each event."""

    def __init__(
        self, locator: Locator, upkeep: Upkeep, sites: Callable[[], Sequence[Site]], note: Callable[[dict[str, Any]], None]
    ) -> None:
        self.locator = locator
        self.upkeep = upkeep
        self.sites = sites
        self.note = note
        self.named = False  # whether any origin has been
        self.told: Callable[[Verdict], None] = lambda verdict: None  # an armed run hands it on
        self._verdicts: list[Verdict] = []
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def locate(self, micro: MicroRows, bad_gradients: bool) -> None:
        """A backward has ended."""
        self.found(self.locator.backward_ends(micro, self.sites(), bad_parameters=bad_gradients))

    def found(self, verdicts: Sequence[Verdict]) -> None:
        """Keep verdicts until it is known which step they belong to."""
        self._verdicts += verdicts

    def name(self) -> None:
        """The backward in which something went bad belongs to the step that is open now."""
        for verdict in self._verdicts:
            self.note({"event": "origin", **verdict.as_event()})
            self.told(verdict)
            self.named = True
        self._verdicts.clear()
        self._note_all(self.locator.noted)
        self.locator.noted.clear()

    def begun(self, optimizer: torch.optim.Optimizer, mine: Mine) -> None:
        """An attempt has."""
        self._optimizers.add(optimizer)
        self._note_all(list(self.upkeep.begins(optimizer, mine)))

    def explain(self, frame: Frame) -> None:
        """Why gradients that are finite have left weights that are not."""
        if frame.stats[:, 1:3].any():
            self._note_all(list(self.upkeep.look(frame, self.sites(), list(self._optimizers))))

    def _note_all(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            self.note(event)
