"""The hooks on the modules and parameters that are wanted, and the count of their calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ..._core._site import Kind, Site
from ..._taps._hook import Hook
from ..._taps._inventory import NamedModule, NamedParameter, parameters
from ..._taps._leaves import call_leaves, leaves
from ..._taps._segments import UNKNOWN, Segments
from ._collector import Collector, Place
from ._functions import Functions
from ._stop import Enough
from ._wanted import Wanted

Came = Callable[[Site, int], bool]


@dataclass(eq=False, slots=True)
class Tap:
    """A hooked module; `sites` by kind, without the path of a tensor inside; how often it was entered, and left."""

    module: nn.Module
    sites: Mapping[Kind, Site]
    entered: int = 0
    left: int = 0


class Hooks:
    """`attach` places them; what they see goes to the collector. `came` is told of each delivery, and says whether the forward may end."""

    def __init__(self, model: nn.Module, wanted: Wanted, collector: Collector) -> None:
        self._collector, self._wanted = collector, wanted
        self._inside = wanted.inside
        self._parameters = {n.path: n for n in parameters(model)} if wanted.has_parameters else {}
        self.taps = {n.path: Tap(n.module, {s.kind: s for s in found}) for n in self._inside if (found := wanted.of_module(n.path))}
        self.came: Came = lambda _site, _call: False
        self._functions = Functions(self._inside, self._returned) if wanted.labels else None
        self.functions_seen: dict[tuple[str, str], int] = {}
        self._accumulated: dict[str, int] = {}
        self._segments = Segments()
        self._thread: int | None = None  # the one whose forwards are meant, None between them

    def attach(self) -> Callable[[], None]:
        """Place the hooks, all or none; the returned function takes them off."""
        with ExitStack() as undo:
            undo.callback(self.end)
            for tap in self.taps.values():
                self._attach_to(tap, undo)
            for site in self._wanted.parameters("param_grad"):
                named = self._parameters[site.path]
                if named.parameter.requires_grad:
                    hook = Hook(partial(self._gathered, site, self._owner(named)))
                    undo.callback(named.parameter.register_post_accumulate_grad_hook(hook).remove)  # type: ignore[no-untyped-call] # untyped in torch
            if self._functions is not None:
                undo.callback(self._functions.attach())
            return undo.pop_all().close

    def _attach_to(self, tap: Tap, undo: ExitStack) -> None:
        if "input" in tap.sites:
            hook = tap.module.register_forward_pre_hook(Hook(partial(self._entered, tap)), with_kwargs=True)
            undo.callback(hook.remove)
        if "output" in tap.sites or "output_grad" in tap.sites:
            undo.callback(tap.module.register_forward_hook(Hook(partial(self._left, tap))).remove)

    def _owner(self, named: NamedParameter) -> nn.Module:
        return next(inside.module for inside in self._inside if inside.path == named.owner)

    def functions(self) -> AbstractContextManager[Any]:
        """Within it, functions are seen, if any are wanted."""
        return nullcontext() if self._functions is None else self._functions

    def end(self) -> None:
        """What runs from now on is not meant. Hooks on tensors stay in graphs that live on: they are deaf then."""
        self._thread = None

    def _is_meant(self) -> bool:
        return self._thread == threading.get_ident() and torch._C._current_graph_task_id() < 0

    def begin(self) -> None:
        """What this thread runs from now on is meant. Calls count from 0; the parameters that are wanted are taken as they are now."""
        self._thread = threading.get_ident()
        for tap in self.taps.values():
            tap.entered = tap.left = 0
        self.functions_seen.clear()
        self._accumulated.clear()
        if self._functions is not None:
            self._functions.begin()
        for site in self._wanted.parameters("param"):
            named = self._parameters[site.path]
            self._collector.take(Place(site, 0, self._owner(named)), named.parameter)

    def _entered(self, tap: Tap, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._is_meant():
            return  # also a checkpointed forward that comes by again in the backward: its values are known
        call, tap.entered = tap.entered, tap.entered + 1
        self._deliver(tap, tap.sites["input"], call, call_leaves(args, kwargs))

    def _left(self, tap: Tap, _module: nn.Module, _args: Any, output: Any) -> None:
        if not self._is_meant():
            if self._thread is not None and (again := self._segments.again(tap)) is not None and again != UNKNOWN:
                self._listen(tap, again, output)  # a re-entrant checkpoint has a graph only now
            return
        call, tap.left = tap.left, tap.left + 1
        if "output_grad" in tap.sites:
            if not torch.is_grad_enabled():
                self._segments.ran(tap, call)
            self._listen(tap, call, output)
        if "output" in tap.sites:
            self._deliver(tap, tap.sites["output"], call, leaves(output))

    def _deliver(self, tap: Tap, site: Site, call: int, found: list[tuple[str, torch.Tensor]]) -> None:
        for path, tensor in found:
            self._collector.take(Place(replace(site, output_path=path) if path else site, call, tap.module), tensor)
        if self.came(site, call):
            raise Enough

    def _listen(self, tap: Tap, call: int, output: Any) -> None:
        """Take the gradients at the tensors of `output` when they come."""
        if "output_grad" not in tap.sites:
            return
        for path, tensor in leaves(output):
            place = Place(replace(tap.sites["output_grad"], output_path=path), call, tap.module)
            if tensor.requires_grad and tensor.grad_fn is not None and self._collector.wants(place.site, call):
                tensor.register_hook(Hook(partial(self._arrived, place)))  # type: ignore[no-untyped-call] # untyped in torch

    def _arrived(self, place: Place, grad: torch.Tensor) -> None:
        if self._thread is not None:
            self._collector.take(place, grad, adds=True)

    def _gathered(self, site: Site, owner: nn.Module, parameter: torch.Tensor) -> None:
        call = self._accumulated.get(site.path, 0)
        self._accumulated[site.path] = call + 1
        if parameter.grad is not None and self._thread is not None:
            self._collector.take(Place(site, call, owner), parameter.grad)

    def _returned(self, named: NamedModule, name: str, found: list[tuple[str, torch.Tensor]]) -> None:
        if not found or self._thread is None:
            return
        call = self.functions_seen.get((named.path, name), 0)
        self.functions_seen[named.path, name] = call + 1
        site = self._wanted.of_function(named.path, name)
        if site is not None:
            for path, tensor in found:
                self._collector.take(Place(replace(site, output_path=path) if path else site, call, named.module), tensor)
