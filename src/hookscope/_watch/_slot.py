"""A slot: where the stats of one tensor of one call of a module are written, in the forward and in the backward.

It is reached through the hook that sits on the module, holds no tensor of the graph, and is overwritten, never added to: a recompute
under activation checkpointing writes the same numbers again.
"""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from .._stats import Row, reduce_into
from .._taps._gradient_hook import hook_gradient
from .._taps._hook import leave_as_it_is
from .._taps._modes import unseen
from ._fields import Written

if TYPE_CHECKING:
    from ._activations import Activations


class Slot(Written):
    """One tensor of one call of a module, in a run of its own."""

    __slots__ = ("host", "others")

    def __init__(self, owner: Activations, call: int, output: tuple[int, Row | None], grad: tuple[int, Row | None]) -> None:
        self.owner = owner
        self.call = call
        self.output_site, self.output_row = output
        self.grad_site, self.grad_row = grad
        self.output_at, self.grad_at = (0 if row is None else row.pointer for row in (self.output_row, self.grad_row))
        self.seq = -1
        self.others: dict[str, tuple[int, Row]] = {}  # rows of gradients with a label
        self.followers = []
        self.host = None if self.output_row is None else self.output_row.host

    @property
    def bad(self) -> bool:
        """Whether the output holds a NaN or an Inf; False where asking would make the host wait."""
        return self.host is not None and bool(self.host[1] or self.host[2])

    def can_follow(self, source: Slot) -> bool:
        """Whether `source` reads, for the same tensor, all that is wanted here."""
        return (self.output_row is None or source.output_row is not None) and (self.grad_row is None or source.grad_row is not None)

    def tap(self, tensor: torch.Tensor) -> None:
        """See the gradient of `tensor` when it arrives. The hook stays with the tensor's graph and goes with it."""
        self.grad_written = False
        hook_gradient(tensor, functools.partial(self.saw_gradient, self.forwards))

    def saw_gradient(self, forward: int, grad: torch.Tensor | None) -> None:
        """The gradient has arrived of what was filled in as number `forward`."""
        owner, row = self.owner, self.grad_row
        if grad is None or row is None:  # torch calls with None for an output that the loss does not use
            return
        if not owner.on or (forward != self.forwards and forward <= self.seen) or (owner.locator is not None and owner.locator.busy):
            return
        # An earlier graph than the latest has its turn where forwards run ahead of their backwards, as in a pipeline; but not a second one.
        self.seen = forward
        began = time.perf_counter_ns()
        try:
            with unseen():
                if owner.passing.label:
                    self._labelled(owner.passing.label, grad)
                elif reduce_into(row, grad) and not self.grad_written:
                    self.grad_written = True
                    owner.gradients.append(self)
        except Exception as error:
            owner.fail(error)
        owner.spent += time.perf_counter_ns() - began

    def _labelled(self, label: str, grad: torch.Tensor) -> None:
        owner = self.owner
        if label not in self.others:
            site = replace(owner.table.sites[self.grad_site], label=label)
            self.others[label] = owner.table.add(site), owner.store.row(grad)
        number, row = self.others[label]
        if number >= 0 and reduce_into(row, grad):
            owner.labelled[number, self.call] = self, row


# Compiled autograd calls it as it is: a clock and a kernel cannot be traced.
Slot.saw_gradient._torchdynamo_disable = True  # type: ignore[attr-defined]  # a mark of torch's own
leave_as_it_is(Slot.saw_gradient.__code__)
