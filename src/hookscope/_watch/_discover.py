"""Finds the models of a program that knows nothing of hookscope, before their first forward runs.

Torch says which module is registered in which, so the first module that a training calls leads to the outermost one that holds it: a GAN's
generator to the module that holds both networks. A global forward pre-hook notices such calls. Since it costs microseconds for every
module call, it is taken out when nothing new has turned up for a while, and put back when parameters are made or an optimizer comes by
with unknown ones.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from .._core._errors import HookscopeWarning, SelectionError
from .._core._outcome import process_outcome
from .._record import RunWriter
from ._notice import outside, warn
from ._session import Session
from ._settings import Settings
from ._watch import free_name

QUIET_STEPS = 20  # optimizer steps without news after which the global hook rests
_LOOKS_AT_ITSELF = frozenset(("locals", "vars", "dir", "eval", "exec"))  # in the names of a function's code


def discover(settings: Settings, writer: RunWriter) -> Discovery:
    """Record to `writer` whatever models this process trains from now on."""
    return Discovery(Session(settings, writer, first_step=writer.next_step, known=writer.known_sites))


class Discovery:
    """Adds models to `session` as the program calls them with gradients on."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._holders: weakref.WeakKeyDictionary[nn.Module, list[weakref.ref[nn.Module]]] = weakref.WeakKeyDictionary()
        self._seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # everything inside the models found
        self._names: set[str] = set()
        self._calls: RemovableHandle | None = None
        self._quiet = 0
        self._checked = False  # whether the selection was held against the models of the first step
        self._optimizers: set[tuple[int, int]] = set()
        self._stepping: weakref.ref[torch.optim.Optimizer] | None = None
        self._handles = [
            torch_module.register_module_module_registration_hook(self._registered),
            torch_module.register_module_parameter_registration_hook(self._made_parameter),
            register_optimizer_step_pre_hook(self._stepped),
            register_optimizer_step_post_hook(self._has_stepped),
        ]
        self._listen()

    def close(self) -> None:
        """Take the global hooks out and finish the run."""
        self._rest()
        for handle in self._handles:
            handle.remove()
        self.session.close(process_outcome(), getattr(sys, "last_value", None))
        self.session.deliver(quietly=True)

    def unmatched(self) -> str | None:
        """What of the selection matches nothing in the models found so far, in a sentence; None if all of it does or there is none."""
        try:
            if self._names:
                self.session.models.check_selection()
        except SelectionError as problem:
            return str(problem)
        return None

    # -- global hooks: each returns None, and keeps its own failures to itself ----------------------------------------------------

    def _registered(self, holder: nn.Module, name: str, inner: nn.Module | None) -> None:
        if isinstance(inner, nn.Module):
            self._holders.setdefault(inner, []).append(weakref.ref(holder))

    def _made_parameter(self, *_: Any) -> None:
        self._listen()

    def _has_stepped(self, *_: Any) -> None:
        self._stepping = None

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._quiet += 1
        self._stepping = weakref.ref(optimizer)
        if not self._checked and self._names:
            self._checked = True
            self.session.safety.run("discovery", self._check)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if (key := (id(optimizer), len(parameters))) not in self._optimizers:
            self._optimizers.add(key)
            if any(self.session.parameters.get(p) is None for p in parameters):
                self._listen()
        if self._quiet > QUIET_STEPS:
            self._rest()  # only module hooks are taken out here: torch is iterating over those of optimizers

    def _called(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling() or module in self._seen or not torch.is_grad_enabled() or self.session.activations.inside:
            return
        if next(module.parameters(), None) is None:  # a loss, an activation made on the fly: not a model
            return
        if not self.session.owner.admits(type(module).__name__):
            return
        self.session.safety.run("discovery", self._found, module, args, _keywords(sys._getframe(1)))

    # -- models ---------------------------------------------------------------------------------------------------------------------

    def _found(self, called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        model = self._outermost(called)
        name = free_name(_variable(model) or type(model).__name__, self._names)
        self._names.add(name)
        self._seen.update(model.modules())
        self._quiet = 0
        self.session.add_models({name: weakref.ref(model)}, strict=False)
        if self._stepping is not None and (optimizer := self._stepping()) is not None:  # its closure makes this forward
            self.session.attempt_begins(optimizer, has_closure=True)
        with torch.enable_grad():  # the program's own mode, see `_called`
            self.session.models.enter_late(model, name, called, (args, kwargs))

    def _check(self) -> None:
        if problem := self.unmatched():
            warn(f"hookscope: {problem}", HookscopeWarning)

    def _outermost(self, module: nn.Module) -> nn.Module:
        seen = {id(module)}
        while holder := next((h for h in self._holding(module) if id(h) not in seen), None):
            seen.add(id(holder))
            module = holder
        return module

    def _holding(self, module: nn.Module) -> Iterator[nn.Module]:
        for ref in self._holders.get(module, ()):
            holder = ref()
            if holder is not None and any(inner is module for inner in holder._modules.values()):
                yield holder

    def _listen(self) -> None:
        self._quiet = 0
        if self._calls is None:
            self._calls = torch_module.register_module_forward_pre_hook(self._called)

    def _rest(self) -> None:
        if self._calls is not None:
            self._calls.remove()
            self._calls = None


def _keywords(call: FrameType) -> dict[str, Any]:
    """The keyword arguments of a module's call, which torch keeps from a global pre-hook: read from the frame that calls the hook."""
    found = _scope(call).get("kwargs")
    return found if isinstance(found, dict) else {}


def _variable(model: nn.Module) -> str | None:
    """What the program calls the model: a variable of the calling functions, or an attribute of their `self`.

    The outermost one counts: two models that pass through one `train(model)` have names of their own further out.
    """
    frame: FrameType | None = outside()
    found = None
    while frame is not None:
        scope = _scope(frame)
        owner = scope.pop("self", None)
        names = [*scope.items(), *getattr(owner, "__dict__", {}).items()]
        found = next((str(name) for name, value in names if value is model), found)
        frame = frame.f_back
    return found


def _scope(frame: FrameType) -> dict[str, Any]:
    """A copy of the variables of a frame; empty where taking one could be noticed.

    Before Python 3.13 `f_locals` of a function is one dict that lives as long as the call. Filled, it would keep alive what the function
    has let go; and it is the very dict that `locals()` has given to a function that called it, and that a debugger writes back.
    """
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED or sys.version_info >= (3, 13):
        return dict(frame.f_locals)
    if frame.f_trace is not None or not _LOOKS_AT_ITSELF.isdisjoint(frame.f_code.co_names):
        return {}
    scope = frame.f_locals
    copied = dict(scope)
    scope.clear()
    return copied
