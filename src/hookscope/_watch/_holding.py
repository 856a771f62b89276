"""The forwards of a step, held until it is known whether it was an incident: of the first bad micro-batch, or where asked of the latest."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from .._origin._forward import Buffers, Forward
from .._origin._play import beside
from .._origin._region import Region
from ._evidence import Evidence


class Holding:
    """`always`: of a healthy micro-batch, too; `weights`: for a checkpoint. `step` is the one that is open, `buffers` are those of every
    model that was entered.
    """

    def __init__(self, buffers: MutableMapping[nn.Module, Buffers], region: Region) -> None:
        self.always = self.weights = False
        self.step = 0
        self.entered = 0  # how many forwards have begun
        self._buffers = buffers
        self._region = region
        self._held: Evidence | None = None

    def wants(self, *, bad: bool) -> bool:
        """Whether a micro-batch that is over is to be held."""
        known_bad = self._held is not None and self._held.step == self.step and self._held.bad
        return (bad or self.always) and not known_bad

    def hold(self, forwards: Sequence[Forward], losses: Sequence[torch.Tensor], *, bad: bool) -> None:
        """Take them, with copies of what is emptied when their graph is gone, and what the losses were made of besides."""
        self._held = self._evidence(forwards, beside(self._region, losses), bad=bad)

    def later(self, recall: Callable[[Sequence[Forward]], None]) -> None:
        """How to tell what those forwards have returned, if it is asked for at all."""
        assert self._held is not None
        self._held = replace(self._held, recall=recall)

    def evidence(self, forwards: Sequence[Forward]) -> Evidence:
        """What is held; or, with nothing bad, of the `forwards` under way, one of which may have failed."""
        if self._held is not None and (self._held.bad or not forwards):
            return self._held
        return self._evidence(forwards, (), bad=False) if forwards else Evidence()

    def let_go(self) -> None:
        """The step is over."""
        self._held = None

    def buffers_of(self, evidence: Evidence) -> list[Buffers]:
        """The buffers as these forwards found them; none where another forward has begun since."""
        modules = dict.fromkeys(forward.module for forward in evidence.forwards)
        return [self._buffers[module] for module in modules if module in self._buffers] if evidence.entered == self.entered else []

    def unchanged(self, evidence: Evidence) -> bool:
        """Whether no parameter has been written to since."""
        known = [(self._buffers.get(forward.module), forward.parameters) for forward in evidence.forwards]
        return all(buffers is not None and buffers.versions == versions for buffers, versions in known)

    def _evidence(self, forwards: Sequence[Forward], others: tuple[torch.Tensor, ...], *, bad: bool) -> Evidence:
        copies = tuple(replace(forward, gradients=dict(forward.gradients)) for forward in forwards)
        return Evidence(copies, others, self.step, bad, self.entered)
