"""A step that is left out, in the usual case: one forward, one backward, one optimizer, and nothing to be seen. Few calls, to the same end.

Each Python function on the way costs microseconds where the caches are cold, however little it does. So what the long way asks of many is
asked here at once, or, where it seldom changes, only in `learn`. Both ways leave everything in the same state: what is not as usual goes
the long way from there on, up to the end of a step that was as usual.
"""

from __future__ import annotations

import os
import time
import weakref
from _thread import get_ident
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .._core._site import Site
from .._stats import read_plain
from ._passing import INNER

if TYPE_CHECKING:
    from ._extras import Entry
    from ._session import Session

_process, _now = os.getpid, time.perf_counter_ns
_is_grad_enabled, _graph_task = torch.is_grad_enabled, torch._C._current_graph_task_id
_function_modes, _dispatch_modes = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
_transform, _tracing = torch._C._functorch.maybe_current_level, torch._C._get_tracing_state
_Unseen = torch._C.DisableTorchFunction

Enter = Callable[[nn.Module, tuple[Any, ...], dict[str, Any] | None], None]
Leave = Callable[[nn.Module, tuple[Any, ...], Any], None]
REFUSED, READY, ENTERED, LEFT, BACKWARD, GLANCED, ATTEMPT = range(7)


class Shortcut:
    """Asked before anybody is told; each answer says whether all is dealt with. `stage` is what has happened last."""

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)
        self.safety, self.locator, self.models = session.safety, session.locator, session.models
        self.steps, self.activations = session.steps, session.activations
        self.stage = REFUSED
        self.backwards = 0  # of all ways
        self._thread = self._pid = 0
        self._module: weakref.ref[nn.Module] | None = None  # through which the latest forward has entered
        self.around: nn.Module | None = None  # a wrapper around it tells of its forward, which is under way
        self._entered = 0  # forwards that went the long way since the last attempt was over
        self._returned: Entry | None = None  # what is read of the model's output, if that is one tensor
        self._loss: Entry | None = None

    def close(self) -> bool:
        """The long way from here on."""
        self.stage = REFUSED
        return False

    # -- the step -------------------------------------------------------------------------------------------------------------------

    def enters(self, otherwise: Enter, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        """A forward begins in `module`; `otherwise` goes the long way."""
        activations = self.activations
        if (
            self.stage != READY
            or self._thread != get_ident()
            or self._module is None
            or self._module() is not module
            or self._pid != _process()
            or not _is_grad_enabled()
            or activations.on
            or activations.depth
            or self.models.changed
            or _dispatch_modes()
            or _graph_task() != -1
            or _transform() is not None
            or _tracing() is not None
        ):
            if module is self.around:
                return
            self._entered += 1
            self._module = weakref.ref(module)
            self.close()
            otherwise(module, args, kwargs)
            return
        began = _now()
        self.stage, activations.depth, activations.with_grad = ENTERED, 1, True
        try:
            with _Unseen():
                self.locator.entered(module, args, kwargs or {}, training=True, closely=False)
        except Exception as error:
            activations.fail(error)
        activations.spent += _now() - began

    def leaves(self, otherwise: Leave, site: Site, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """It is over, and comes out at `site`."""
        if module is self.around:
            return
        activations = self.activations
        if (
            self.stage != ENTERED
            or self._thread != get_ident()
            or activations.depth != 1
            or self._module is None
            or self._module() is not module
            or output is None
            or _function_modes()
            or _dispatch_modes()
        ):
            self.close()
            otherwise(module, args, output)
            return
        began = _now()
        self.stage, activations.depth = LEFT, 0
        try:
            entry = self._returned
            if entry is not None and type(output) is torch.Tensor and read_plain(entry[3], output):
                activations.extras.entries.append(entry)
                self.locator.left(output, training=True)
            else:
                with _Unseen():
                    activations.extras.read_returned(site, 0, output)
                    self.locator.left(output, training=True)
        except Exception as error:
            activations.fail(error)
        activations.spent += _now() - began

    def backward_begins(self, root: torch.Tensor) -> bool:
        """Of a loss by itself, without a factor."""
        modes, backwards = _function_modes(), self.backwards + 1
        if (
            self.stage != LEFT
            or self._thread != get_ident()
            or type(root) is not torch.Tensor
            or self.safety.off
            or modes > 1
            or (modes and not self.locator.region.seated)
            or _dispatch_modes()
            or _graph_task() != -1
            or _transform() is not None
            or backwards & (backwards - 1) == 0  # when the long way looks around
            or not self.steps.glancing.glance.bare.goes_on()
        ):
            return self.close()
        began = _now()
        self.stage, self.backwards = BACKWARD, backwards
        try:
            self.locator.backward_begins((root,))
            entry, extras = self._loss, self.activations.extras
            if entry is not None and read_plain(entry[3], root):
                extras.entries.append(entry)
            else:
                extras.read_loss(root, 0)
            self.activations.passing.label = ""
        except Exception as error:
            self.safety.switch_off("steps", error)
        self.safety.spent += _now() - began
        return True

    def backward_ends(self) -> bool:
        """Whether a glance shows that all is well."""
        if self.stage != BACKWARD or self._thread != get_ident() or self.safety.off:
            return self.close()
        began = _now()
        try:
            glancing = self.steps.glancing
            if (glimpse := glancing.ends(self.locator.passed)) is None:
                glancing.on = False  # it has looked
                return self.close()
            self.stage, self.activations.passing.label = GLANCED, INNER
            self.steps.glimpsed(glimpse)
        except Exception as error:
            self.safety.switch_off("steps", error)
        self.safety.spent += _now() - began
        if self.locator.due:
            self.safety.run("origin", self.locator.begin_early)
        return True

    def attempt_begins(self, optimizer: torch.optim.Optimizer) -> bool:
        """Without a closure."""
        if self.stage != GLANCED or self._thread != get_ident() or not self.steps.routine.begins(optimizer, has_closure=False):
            return self.close()
        self.stage = ATTEMPT
        if self.locator.region.seated:
            self.safety.run("origin", self.locator.pause)
        return True

    def attempt_ends(self, optimizer: torch.optim.Optimizer) -> bool:
        """The step is over."""
        if self.stage != ATTEMPT or self._thread != get_ident() or self.steps.routine.under_way is not optimizer:
            return self.close()
        began = _now()
        self.stage, self.steps.routine.under_way = READY, None
        try:
            self.steps.goes_by()
            self.locator.over()
            self.locator.holding.let_go()
        except Exception as error:
            self.safety.switch_off("steps", error)
        self.safety.spent += _now() - began
        if self.locator.due:
            self.safety.run("origin", self.locator.begin_early)
        return True

    # -- the long way ---------------------------------------------------------------------------------------------------------------

    def learn(self, optimizer: torch.optim.Optimizer) -> None:
        """A step is over that went the long way and was as usual: is whatever seldom changes so, too?"""
        entered, self._entered, session = self._entered, 0, self._session()
        if entered != 1 or session is None or session.closed or session.safety.off or session.safety.elsewhere or not session.owner.here:
            return
        asked = session.second.armed is not None or session.guard.nonfinite.watches or session.micro_listener is not None
        activations = self.activations
        at_work = activations.on or activations.depth or activations.waiting or activations.evaluation or not activations.passing.plain
        if asked or at_work or session.owner.foreign or session.parameters.scaled:
            return
        self._thread, self._pid, self.stage = get_ident(), _process(), READY
        self._returned = self._loss = None
        seen = self.steps.glancing.seen
        sites = [session.table.sites[entry[0]] for entry in seen]
        if [(site.kind, site.output_path) for site in sites] == [("output", ""), ("loss", "")] and not any(e[1] or e[2] for e in seen):
            self._returned, self._loss = seen

    def over(self) -> None:
        """Another attempt is over."""
        self._entered = 0
