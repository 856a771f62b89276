"""Outputs, output gradients and inputs: read in the hooks into slots, folded once per micro-batch."""

from __future__ import annotations

import os
import time
import weakref
from _thread import get_ident
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .._core._site import Site
from .._stats import Row, reduce_into
from .._taps._leaves import leaves
from .._taps._modes import is_special, is_traced, is_transformed, unnoticed
from .._taps._segments import UNKNOWN, Segments
from ._compiled_sites import Traced
from ._evaluation import Evaluation
from ._extras import Extras
from ._folding import folded
from ._passing import Passing
from ._slot import Slot
from ._store import Store
from ._table import SiteTable
from ._tap import MicroRows, Tap, held, tap_gradient
from ._views import Views

if TYPE_CHECKING:
    from ._locating import Locator

_process, _now = os.getpid, time.perf_counter_ns

MAX_CALLS = 256  # calls of one module in one micro-batch that get rows of their own; later ones are counted as lost
MAX_BLAMED = 8  # modules per micro-batch whose inputs are read because their output was not finite


class Activations:
    """`on` gates every hook; it changes only between steps, never between a forward and its backward."""

    def __init__(self, table: SiteTable, store: Store, fail: Callable[[Exception], None]) -> None:
        self.table = table
        self.store = store
        self.fail = fail
        self.on = True
        self.spent = 0  # nanoseconds
        self.before_entry: Callable[[], None] = lambda: None
        self.seat: Callable[[bool], None] = lambda on: None  # puts the hooks of the modules on, or takes them off
        self.affords: Callable[[], bool] = lambda: True  # whether an evaluation may be read while no step is
        self.locator: Locator | None = None
        self.lost_calls = 0
        self.transformed: set[Tap] = set()  # called inside a transform of torch.func, where nothing can be read
        self.views = Views()
        self.evaluation, self.traced = Evaluation(table, store), Traced(table)
        self.passing = Passing()
        self.labelled: dict[tuple[int, int], tuple[Slot, Row]] = {}
        self.gradients: list[Slot] = []
        self.segments = Segments()
        self._pid = os.getpid()
        self._outputs: list[tuple[Slot, Row]] = []
        self.extras = Extras(table, store, MAX_CALLS)
        self._touched: list[Tap] = []
        self._last: tuple[weakref.ref[torch.Tensor], int, Slot] | None = None
        self.depth = self._lane = 0  # the latter is the thread whose forward is under way, where no other has to be reckoned with
        self.with_grad = False
        self._was_training: bool | None = None
        self._seq = self._blamed = 0

    def enter(self, site: Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, within: bool = False) -> None:
        """A forward begins in one of the modules through which the training enters. It may do so within another one: `within` says
        whether what goes in is read then, too.
        """
        if torch._C._current_graph_task_id() != -1:
            return
        self.depth += 1
        if self.depth == 1:
            self.with_grad = torch.is_grad_enabled()
            self._guarded(self._entered, site, module, args, kwargs)
        elif within and self.on and self._training():
            self._guarded(self.extras.read_call, site, 0, self._seq, args, kwargs)

    def leave(self, site: Site, output: Any) -> None:
        """That forward is over; by an exception if `output` is None. `site` is where that comes out."""
        if torch._C._current_graph_task_id() == -1:
            self.depth = max(0, self.depth - 1)
            if self.depth == 0:
                self._lane = 0
                self._guarded(self._left, site, output)

    def before_forward(self, tap: Tap, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is called whose inputs were asked for."""
        if self.on and torch._C._current_graph_task_id() == -1 and self._training():
            self._guarded(self.extras.read_call, tap.input_site, tap.calls, self._seq, args, kwargs)

    def after_forward(self, tap: Tap, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """A module has returned."""
        if not self.on and torch.is_grad_enabled():
            return
        if torch._C._current_graph_task_id() != -1:
            if self.on:
                self._guarded(self._recomputed, tap, args, kwargs, output)
        elif not self._training():
            self._guarded(self.evaluation.saw, tap.site, output)
        elif self.on:
            self._guarded(self._computed, tap, args, kwargs, output)

    def saw(self, tap: Tap, args: tuple[Any, ...], kwargs: list[dict[str, Any]], output: Any) -> bool:
        """The same in the most common case, without a detour: the first call of a module in a forward that nothing interferes with, and one
        tensor. False if it is another case: nothing is done then.
        """
        slot = tap.first
        if slot is None or tap.calls or self._lane != get_ident() or type(output) is not torch.Tensor or is_special():
            return False
        began = time.perf_counter_ns()
        try:
            self.views.called()
            self._touched.append(tap)
            tap.calls, tap.fired = 1, True
            self._fill(tap, slot, output, args, kwargs[0] if kwargs else {})
        except Exception as error:
            self.fail(error)
        self.spent += time.perf_counter_ns() - began
        return True

    @property
    def inside(self) -> bool:
        """Whether a forward of a watched model is under way."""
        return self.depth > 0

    def outside(self) -> None:
        """No forward is under way now: a KeyboardInterrupt inside one may have left the depth behind."""
        self.depth = self._lane = 0

    def _training(self) -> bool:
        """Re-entrant checkpointing runs its first pass without grad, inside a forward that has it."""
        return torch.is_grad_enabled() or (self.depth > 0 and self.with_grad and not torch.is_inference_mode_enabled())

    def _guarded(self, action: Callable[..., None], *args: Any) -> None:
        if _process() != self._pid or (self.locator is not None and self.locator.busy):
            return  # what the hooks see in a replay is no training
        if is_transformed():
            self.transformed.update(arg for arg in args[:1] if isinstance(arg, Tap))
            return
        if is_traced():  # torch.jit.trace: shapes are tensors now, and all that is asked of them is noted
            return
        began = _now()
        try:
            unnoticed(action, *args)
        except Exception as error:
            self.fail(error)
        self.spent += _now() - began

    def _entered(self, site: Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.before_entry()
        if self.locator is not None:
            self.locator.entered(module, args, kwargs, training=self.with_grad, closely=self.on)
        if not (self.on or self.with_grad) and self.affords():
            self.seat(True)
        if not (self.on and self.with_grad):
            return
        if module.training and self._was_training is False:
            self.end_evaluation()
        self._was_training = module.training
        self._lane = get_ident()
        self.extras.read_call(site, 0, self._seq, args, kwargs)

    def _left(self, site: Site, output: Any) -> None:
        self.seat(self.on)
        if not self.on and self.with_grad and output is not None:  # what the sentinel sees of a step that is left out
            self.extras.read_returned(site, self._seq, output)
        if self.locator is not None:
            self.locator.left(output, training=self.with_grad)

    def _computed(self, tap: Tap, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.views.called()
        call = tap.calls
        if call == 0:
            self._touched.append(tap)
            tap.fired = True
        tap.calls = call + 1
        if call >= MAX_CALLS:
            self.lost_calls += 1
            return
        if not torch.is_grad_enabled():
            self.segments.ran(tap, call)
        for path, tensor in leaves(output):
            if (path, call) not in tap.slots:
                tap.add_slot(self, path, call, tensor)
            if (slot := tap.slots[path, call]) is not None:
                self._fill(tap, slot, tensor, args, kwargs)

    def _fill(self, tap: Tap, slot: Slot, tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        slot.forwards += 1
        if slot.followers:
            slot.followers.clear()
        source = self._read_output(slot, tensor)
        if source is slot:
            hooked = held(tap, tensor)
            if tap_gradient(slot, hooked):
                self.views.tapped(tap, slot, hooked)
        if source.bad and self._blamed < MAX_BLAMED:
            self._blamed += 1
            self.extras.blame(tap, slot, args, kwargs, tensor)

    def _recomputed(self, tap: Tap, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """A forward within a backward. Of a checkpointed one the outputs are known, but a re-entrant checkpoint's has a graph only now."""
        call = self.segments.again(tap)
        if call == UNKNOWN:  # the first run was where one could not tell that it was training
            self._computed(tap, args, kwargs, output)
        elif call is not None:
            for path, tensor in leaves(output):
                slot = tap.slots.get((path, call))
                if slot is not None and not slot.follows:
                    tap_gradient(slot, held(tap, tensor))

    def _read_output(self, slot: Slot, tensor: torch.Tensor) -> Slot:
        """Returns the slot that holds this tensor's stats: another one where a container returned its child's tensor."""
        slot.seq = self._seq
        self._seq += 1
        last, source, version = self._last, slot, 0 if tensor.is_inference() else tensor._version
        slot.follows = last is not None and last[0]() is tensor and last[1] == version and slot.can_follow(last[2])
        if slot.follows:
            assert last is not None
            source = last[2]
            source.followers.append(slot)
        else:
            if slot.output_row is not None and not reduce_into(slot.output_row, tensor):
                return slot
            self._last = (weakref.ref(tensor), version, slot)
        if slot.output_site >= 0 and source.output_row is not None:
            self._outputs.append((slot, source.output_row))
        return source

    def end_evaluation(self) -> None:
        """What was read in eval mode and left without a backward is no part of the micro-batch that comes."""
        if self._was_training is False:
            self.evaluation.adopt((slot.output_site, row) for slot, row in self._outputs)
            self.forget()
            self.traced.forget()

    def read_losses(self, roots: Sequence[torch.Tensor]) -> None:
        """Stats of what a backward starts from. If that fails, the steps can do without."""
        for root in roots:
            self._guarded(self.extras.read_loss, root, self._seq)

    def read_micro(self, site: Site, grad: torch.Tensor) -> None:
        """What a backward has brought to a parameter."""
        if self.on and not self.passing.label:
            self._guarded(lambda: self.extras.read(site, "", grad, self._seq))

    def begin_backward(self) -> None:
        """Gradients that arrive from now on are those of a backward."""
        self.passing.begin_backward(fresh=bool(self._touched))
        self.traced.forget_gradients()
        if not self.passing.label:
            self.views.begin_backward()

    def end_backward(self, *, create_graph: bool) -> None:
        """And those that arrive from now on are not."""
        self.views.end_backward()
        self.passing.end_backward(create_graph=create_graph, fresh=bool(self._touched))

    @property
    def waiting(self) -> bool:
        """Whether a forward of the training has been read and not been folded."""
        return bool(self._touched or self.extras.entries)

    def fold(self, scale: float = 1.0, *, without_backward: bool = False) -> MicroRows:
        """The rows written since the last fold, and a clean slate. The loss was multiplied by `scale`: that is taken out again.

        `without_backward`: there was none, so the gradients are those that `torch.autograd.grad` took.
        """
        entries, losses = self.extras.split()
        full = bool(self._outputs or self.gradients or self.labelled)
        entries += [(slot.output_site, slot.call, slot.seq, row) for slot, row in self._outputs]
        plain = len(entries)
        entries += losses
        for slot in self.gradients:
            if slot.grad_row is not None:
                entries += [(s.grad_site, s.call, s.seq, slot.grad_row) for s in (slot, *slot.followers) if s.grad_site >= 0]
        for (label, _), (slot, row) in self.labelled.items():
            entries.append((slot.grad_site if without_backward else label, slot.call, slot.seq, row))
        self.forget()
        self.spent += self.traced.spent(self.fail)
        return self.traced.joined(folded(entries, self.store, plain=plain, scale=scale, full=full), scale)

    def forget(self) -> None:
        """Drop what was written since the last fold."""
        self.extras.entries = []
        if not (self._touched or self._outputs or self.gradients or self.labelled):
            return  # as after each step that is left out
        for tap in self._touched:
            tap.calls = 0
        for slot in self.gradients:
            slot.grad_written = False
        self._touched, self._outputs, self.gradients, self.labelled = [], [], [], {}
        self.views.forget()
        self._last, self._seq, self._blamed = None, 0, 0
