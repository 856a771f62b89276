"""Outputs, output gradients and inputs: read in the hooks into slots, folded once per micro-batch."""

from __future__ import annotations

import os
import time
import weakref
from _thread import get_ident
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from .._core._site import Site
from .._stats import Row
from .._taps._leaves import leaves
from .._taps._modes import is_traced, is_transformed, unnoticed
from .._taps._segments import UNKNOWN, Segments
from ._compiled_sites import Traced
from ._evaluation import Evaluation
from ._extras import Extras
from ._fields import Shared
from ._filling import fill
from ._folding import folded, read_slots
from ._passing import Passing
from ._slot import Slot
from ._store import Store
from ._table import SiteTable
from ._tap import MicroRows, Tap, held, tap_gradient
from ._views import Views

_process, _now = os.getpid, time.perf_counter_ns

MAX_CALLS = 256  # calls of one module in one micro-batch that get rows of their own; later ones are counted as lost
MAX_BLAMED = 8  # modules per micro-batch whose inputs are read because their output was not finite


class Activations(Shared):
    """`on` gates every hook; it changes only between steps, never between a forward and its backward."""

    def __init__(self, table: SiteTable, store: Store, fail: Callable[[Exception], None]) -> None:
        self.table = table
        self.store = store
        self.fail = fail
        self.on = True
        self.before_entry: Callable[[], None] = lambda: None
        self.seat: Callable[[bool], None] = lambda on: None  # puts the hooks of the modules on, or takes them off
        self.affords: Callable[[], bool] = lambda: True  # whether an evaluation may be read while no step is
        self.lost_calls = 0
        self.transformed: set[Tap] = set()  # called inside a transform of torch.func, where nothing can be read
        self.views = Views()
        self.evaluation, self.traced = Evaluation(table, store), Traced(table)
        self.passing = Passing()
        self.labelled: dict[tuple[int, int], tuple[Slot, Row]] = {}
        self.segments = Segments()
        self._pid = os.getpid()
        self.extras = Extras(table, store, MAX_CALLS)
        self.touched, self.outputs, self.gradients = [], [], []
        self.depth = 0
        self.with_grad = False
        self._was_training: bool | None = None

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
            self._guarded(self.extras.read_call, site, 0, self.seq, args, kwargs)

    def leave(self, site: Site, output: Any) -> None:
        """That forward is over; by an exception if `output` is None. `site` is where that comes out."""
        if torch._C._current_graph_task_id() == -1:
            self.depth = max(0, self.depth - 1)
            if self.depth == 0:
                self.lane = 0
                self._guarded(self._left, site, output)

    def before_forward(self, tap: Tap, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is called whose inputs were asked for."""
        if self.on and torch._C._current_graph_task_id() == -1 and self._training():
            self._guarded(self.extras.read_call, tap.input_site, tap.calls, self.seq, args, kwargs)

    def after_forward(self, tap: Tap, given: tuple[Any, ...]) -> None:
        """A module has returned; `given` is what its hook was called with."""
        if not self.on and torch.is_grad_enabled():
            return
        if torch._C._current_graph_task_id() != -1:
            if self.on:
                self._guarded(self._recomputed, tap, given, given[-1])
        elif not self._training():
            self._guarded(self.evaluation.saw, tap.site, given[-1])
        elif self.on:
            self._guarded(self._computed, tap, given, given[-1])

    @property
    def inside(self) -> bool:
        """Whether a forward of a watched model is under way."""
        return self.depth > 0

    def outside(self) -> None:
        """No forward is under way now: a KeyboardInterrupt inside one may have left the depth behind."""
        self.depth = self.lane = 0

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
        self.lane = get_ident()
        self.extras.read_call(site, 0, self.seq, args, kwargs)

    def _left(self, site: Site, output: Any) -> None:
        self.seat(self.on)
        if not self.on and self.with_grad and output is not None:  # what the sentinel sees of a step that is left out
            self.extras.read_returned(site, self.seq, output)
        if self.locator is not None:
            self.locator.left(output, training=self.with_grad)

    def _computed(self, tap: Tap, given: tuple[Any, ...], output: Any) -> None:
        if self.viewed is not None:
            self.views.called()
        call = tap.calls
        if call == 0:
            self.touched.append(tap)
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
                fill(self, tap, slot, tensor, given)
        if call == 0 and type(output) is tuple:
            tap.know_parts(output)

    def _recomputed(self, tap: Tap, given: tuple[Any, ...], output: Any) -> None:
        """A forward within a backward. Of a checkpointed one the outputs are known, but a re-entrant checkpoint's has a graph only now."""
        call = self.segments.again(tap)
        if call == UNKNOWN:  # the first run was where one could not tell that it was training
            self._computed(tap, given, output)
        elif call is not None:
            for path, tensor in leaves(output):
                slot = tap.slots.get((path, call))
                if slot is not None and not slot.follows:
                    tap_gradient(slot, held(tap, tensor))

    def tapped(self, tap: Tap, slot: Slot, tensor: torch.Tensor) -> None:
        """A hook has been put on a tensor."""
        if tensor._is_view():
            self.views.tapped(tap, slot, tensor)
            self.viewed, self.viewed_version = weakref.ref(tensor), tensor._version

    def called(self) -> None:
        """A module has been called after one that returned a view."""
        self.views.called()

    def blame(self, tap: Tap, slot: Slot, given: tuple[Any, ...], tensor: torch.Tensor) -> None:
        """What a module has returned is not finite, in `tensor`."""
        if self.blamed < MAX_BLAMED:
            self.blamed += 1
            _module, args, *kwargs, _output = given
            self.extras.blame(tap, slot, args, kwargs[0] if kwargs else {}, tensor)

    def end_evaluation(self) -> None:
        """What was read in eval mode and left without a backward is no part of the micro-batch that comes."""
        if self._was_training is False:
            self.evaluation.adopt((slot.output_site, slot.source_row) for slot in self.outputs)
            self.forget()
            self.traced.forget()

    def read_losses(self, roots: Sequence[torch.Tensor]) -> None:
        """Stats of what a backward starts from. If that fails, the steps can do without."""
        for root in roots:
            self._guarded(self.extras.read_loss, root, self.seq)

    def read_micro(self, site: Site, grad: torch.Tensor) -> None:
        """What a backward has brought to a parameter."""
        if self.on and not self.passing.label:
            self._guarded(lambda: self.extras.read(site, "", grad, self.seq))

    def begin_backward(self) -> None:
        """Gradients that arrive from now on are those of a backward."""
        self.passing.begin_backward(fresh=bool(self.touched))
        self.plain = not self.passing.label
        self.traced.forget_gradients()
        if not self.passing.label:
            self.views.begin_backward()

    def end_backward(self, *, create_graph: bool) -> None:
        """And those that arrive from now on are not."""
        self.views.end_backward()
        self.passing.end_backward(create_graph=create_graph, fresh=bool(self.touched))
        self.plain = not self.passing.label

    @property
    def waiting(self) -> bool:
        """Whether a forward of the training has been read and not been folded."""
        return bool(self.touched or self.extras.entries)

    def fold(self, scale: float = 1.0, *, without_backward: bool = False) -> MicroRows:
        """The rows written since the last fold, and a clean slate. The loss was multiplied by `scale`: that is taken out again.

        `without_backward`: there was none, so the gradients are those that `torch.autograd.grad` took.
        """
        given, others = self.extras.split()
        full = bool(self.outputs or self.gradients or self.labelled)
        for (label, _), (slot, row) in self.labelled.items():
            others.append((slot.grad_site if without_backward else label, slot.call, slot.seq, row))
        micro = folded((given, others), read_slots(self.outputs, self.gradients, self.store), self.store, scale=scale, full=full)
        self.forget()
        self.spent += self.traced.spent(self.fail)
        return self.traced.joined(micro, scale)

    def forget(self) -> None:
        """Drop what was written since the last fold."""
        self.extras.entries = []
        if not (self.touched or self.outputs or self.gradients or self.labelled):
            return  # as after each step that is left out
        for tap in self.touched:
            tap.calls = 0
        for slot in self.gradients:
            slot.grad_written = False
        self.touched, self.outputs, self.gradients, self.labelled = [], [], [], {}
        self.views.forget()
        self.last_tensor = self.last_slot = None
        self.viewed = None
        self.seq = self.blamed = 0
