"""Outputs, output gradients and inputs: read in the hooks into slots, folded once per micro-batch."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .._core._site import Kind, Site
from .._core._stats import Rows
from .._stats import Row, reduce_into
from .._taps._inventory import tensor_facts
from .._taps._leaves import call_leaves, leaves
from ._slot import Slot
from ._store import Store
from ._table import SiteTable

MAX_CALLS = 256  # calls of one module in one micro-batch that get rows of their own; later ones are counted as lost
MAX_BLAMED = 8  # modules per micro-batch whose inputs are read because their output was not finite


@dataclass(slots=True)
class Tap:
    """One hooked module: its site (as kind "output"), and where it stands in the current micro-batch."""

    site: Site
    calls: int = 0
    recalls: int = 0
    fired: bool = False
    slots: dict[tuple[str, int], Slot | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MicroRows:
    """The folded rows of one micro-batch."""

    site: NDArray[np.int32]
    call: NDArray[np.int32]
    seq: NDArray[np.int32]
    stats: Rows


class Activations:
    """`on` gates every hook; it changes only between steps, never between a forward and its backward."""

    def __init__(self, table: SiteTable, store: Store, fail: Callable[[Exception], None]) -> None:
        self.table = table
        self.store = store
        self.fail = fail
        self.on = True
        self.spent = 0  # nanoseconds
        self.lost_calls = 0
        self.gradients: list[Slot] = []
        self._pid = os.getpid()
        self._outputs: list[tuple[Slot, Row]] = []
        self._extras: list[tuple[int, int, int, Row]] = []  # inputs and losses: site, call, seq, row
        self._extra_rows: dict[tuple[int, int], Row] = {}
        self._touched: list[Tap] = []
        self._last: tuple[weakref.ref[torch.Tensor], int, Slot] | None = None
        self._depth = 0
        self._with_grad = False
        self._was_training: bool | None = None
        self._seq = 0
        self._blamed = 0

    # -- hooks ----------------------------------------------------------------------------------------------------------------------

    def enter(self, site: Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward begins in one of the modules through which the training enters, perhaps within another one."""
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1:
            return
        self._depth += 1
        if self._depth == 1:
            self._with_grad = torch.is_grad_enabled()
            if self.on and self._with_grad:
                self._guarded(self._entered, site, module, args, kwargs)

    def leave(self) -> None:
        """That forward is over, perhaps by an exception."""
        if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() == -1:
            self._depth = max(0, self._depth - 1)

    def before_forward(self, tap: Tap, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is called whose inputs were asked for."""
        if not torch.compiler.is_compiling() and self.on and torch._C._current_graph_task_id() == -1 and self._training():
            self._guarded(self._read_inputs, replace(tap.site, kind="input"), tap.calls, args, kwargs)

    def after_forward(self, tap: Tap, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """A module has returned."""
        if torch.compiler.is_compiling() or not self.on or not self._training():
            return
        if torch._C._current_graph_task_id() == -1:
            self._guarded(self._computed, tap, args, kwargs, output)
        else:
            self._guarded(self._recomputed, tap, output)

    @property
    def inside(self) -> bool:
        """Whether a forward of a watched model is under way."""
        return self._depth > 0

    def outside(self) -> None:
        """No forward is under way now: a KeyboardInterrupt inside one may have left the depth behind."""
        self._depth = 0

    def _training(self) -> bool:
        """Re-entrant checkpointing runs its first pass without grad, inside a forward that has it."""
        return torch.is_grad_enabled() or (self._depth > 0 and self._with_grad and not torch.is_inference_mode_enabled())

    def _guarded(self, action: Callable[..., None], *args: Any) -> None:
        if os.getpid() != self._pid or torch._C._functorch.maybe_current_level() is not None:
            return
        began = time.perf_counter_ns()
        try:
            action(*args)
        except Exception as error:
            self.fail(error)
        self.spent += time.perf_counter_ns() - began

    # -- reading --------------------------------------------------------------------------------------------------------------------

    def _entered(self, site: Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module.training and self._was_training is False:  # what an evaluation left behind without a backward is no part of what comes
            self.forget()
        self._was_training = module.training
        self._read_inputs(site, 0, args, kwargs)

    def _computed(self, tap: Tap, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        call = tap.calls
        if call == 0:
            self._touched.append(tap)
            tap.fired = True
        tap.calls = call + 1
        if call >= MAX_CALLS:
            self.lost_calls += 1
            return
        for path, tensor in leaves(output):
            slot = self._slot(tap, path, call, tensor)
            if slot is None:
                continue
            slot.tapped = False
            slot.followers.clear()
            source = self._read_output(slot, tensor)
            if source is slot:
                _tap(slot, tensor)
            if source.bad and self._blamed < MAX_BLAMED:
                self._blame(tap, call, slot.seq, args, kwargs, tensor)

    def _recomputed(self, tap: Tap, output: Any) -> None:
        """A checkpointed forward run again in the backward: its outputs are known, but with re-entrant checkpointing only this pass has a
        graph. Segments are recomputed last first, so the calls of a reused module come back in reverse.
        """
        again = tap.recalls
        if again == 0 and tap.calls == 0:
            self._touched.append(tap)
        tap.recalls = again + 1
        call = max(0, tap.calls - 1 - again) if tap.calls else again
        for path, tensor in leaves(output) if call < MAX_CALLS else ():
            slot = self._slot(tap, path, call, tensor)
            if slot is None or slot.tapped:
                continue
            if not tap.calls:  # the first pass ran where one could not tell that it was training
                tap.fired = True
                self._read_output(slot, tensor)
            _tap(slot, tensor)

    def _read_output(self, slot: Slot, tensor: torch.Tensor) -> Slot:
        """Returns the slot that holds this tensor's stats: another one where a container returned its child's tensor."""
        slot.seq = self._seq
        self._seq += 1
        last, source = self._last, slot
        if last is not None and last[0]() is tensor and last[1] == tensor._version and slot.can_follow(last[2]):
            source = last[2]
            source.followers.append(slot)
        else:
            if slot.output_row is not None and not reduce_into(slot.output_row, tensor):
                return slot
            self._last = (weakref.ref(tensor), tensor._version, slot)
        if slot.output_site >= 0 and source.output_row is not None:
            self._outputs.append((slot, source.output_row))
        return source

    def _blame(self, tap: Tap, call: int, seq: int, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor) -> None:
        """The output is not finite: were the inputs? They cannot be told where the module wrote its output over them."""
        self._blamed += 1
        place = _memory(output)
        for path, tensor in call_leaves(args, kwargs):
            if tensor.is_floating_point() and (memory := _memory(tensor)) is not None and memory != place:
                self.read(replace(tap.site, kind="input", output_path=path), tensor, call=call, seq=seq, once=True)

    def _read_inputs(self, site: Site, call: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for path, tensor in call_leaves(args, kwargs):
            self.read(replace(site, output_path=path), tensor, call=call)

    def read(self, site: Site, tensor: torch.Tensor, *, call: int = 0, seq: int | None = None, once: bool = False) -> None:
        """Stats of a tensor that no module returned: an input, a loss. Read again, it is the next call, or, if `once`, left alone."""
        number = self.table.add(replace(site, **tensor_facts(tensor)))
        read = [extra[1] for extra in self._extras if extra[0] == number]
        if number < 0 or (once and call in read):
            return
        call = max([call, *(earlier + 1 for earlier in read)])
        if call >= MAX_CALLS:
            self.lost_calls += 1
            return
        if (number, call) not in self._extra_rows:
            self._extra_rows[number, call] = self.store.row(tensor)
        row = self._extra_rows[number, call]
        if reduce_into(row, tensor):
            self._extras.append((number, call, self._seq if seq is None else seq, row))

    def _slot(self, tap: Tap, path: str, call: int, tensor: torch.Tensor) -> Slot | None:
        try:
            return tap.slots[path, call]
        except KeyError:
            output = self._site(tap, "output", path, tensor)
            grad = self._site(tap, "output_grad", path, tensor) if tensor.is_floating_point() or tensor.is_complex() else -1
            rows = [self.store.row(tensor) if site >= 0 else None for site in (output, grad)]
            tap.slots[path, call] = slot = Slot(self, call, (output, rows[0]), (grad, rows[1])) if max(output, grad) >= 0 else None
            return slot

    def _site(self, tap: Tap, kind: Kind, path: str, tensor: torch.Tensor) -> int:
        return self.table.add(replace(tap.site, kind=kind, output_path=path, **tensor_facts(tensor)))

    # -- folding --------------------------------------------------------------------------------------------------------------------

    def fold(self) -> MicroRows:
        """The rows written since the last fold, and a clean slate."""
        entries = self._extras + [(slot.output_site, slot.call, slot.seq, row) for slot, row in self._outputs]
        for slot in self.gradients:
            if slot.grad_row is not None:
                entries += [(s.grad_site, s.call, s.seq, slot.grad_row) for s in (slot, *slot.followers) if s.grad_site >= 0]
        self.forget()
        site, call, seq = (np.array([entry[i] for entry in entries], np.int32) for i in range(3))
        return MicroRows(site, call, seq, self.store.read([entry[3] for entry in entries]))

    def forget(self) -> None:
        """Drop what was written since the last fold."""
        for tap in self._touched:
            tap.calls = tap.recalls = 0
        for slot in self.gradients:
            slot.grad_written = False
        self._touched, self._outputs, self._extras, self.gradients = [], [], [], []
        self._last = None
        self._seq = self._blamed = 0


def _tap(slot: Slot, tensor: torch.Tensor) -> None:
    """A leaf keeps its hooks for ever, so only what has a graph behind it is tapped."""
    if slot.grad_row is not None and tensor.requires_grad and tensor.grad_fn is not None:
        slot.tap(tensor)


def _memory(tensor: torch.Tensor) -> int | None:
    return int(tensor.untyped_storage()._cdata) if tensor.layout == torch.strided else None
