"""What of the program is compiled: the wrappers around watched models, which carry a hook of their own, and everything else.

Hooks of a module that is compiled run outside of what is compiled, but where torch makes both one graph, as it does with its own classes;
those of the wrapper that `torch.compile(model)` returns always do. Hooks that read outputs are traced (`_compiled_hook`), if they are there
when a module is compiled. What is compiled besides, a function of the loss or a model that is not watched, must not be called while the
tape (`_origin._region`) is on: it would be compiled anew.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from .._core._errors import HookscopeWarning
from .._core._names import WRAPPER_PARTS
from ._notice import warn
from ._placing import Placing

_NONE = id(None)  # what torch has noted where nothing is compiled
_ORIGINAL = "_torchdynamo_orig_callable"  # where torch keeps what it has been given to compile


class Compiled:
    """`models` gives all modules of the watched models by id."""

    def __init__(self, placing: Placing, models: Callable[[], dict[int, str]]) -> None:
        self.placing = placing
        self.models = models
        self.others = False  # something besides watched modules is compiled
        self._looked = 0
        self._renewed = False  # what is compiled again torch no longer counts
        self._frames = 0
        placing.pinned, placing.returned = lambda: self.any, self.renew

    def met(self) -> None:
        """Models have been added."""
        self.look(again=True)
        self.renew()

    @property
    def any(self) -> bool:
        """Whether anything in this process was given to `torch.compile`."""
        return self._renewed or _backends() > 0

    @property
    def found(self) -> bool:
        """The same, when `look` was last called."""
        return self._renewed or self._looked > 0

    def renew(self) -> None:
        """What was compiled before hooks were placed passes them by in silence: have it compiled once more, and say so."""
        if not _graphs() or not any(self._holds(module) for module, _ in _compiled()):
            return
        seconds = sum(torch._dynamo.utils.calculate_time_spent().values())
        torch.compiler.reset()
        self._renewed = True
        warn(
            "hookscope: the model was compiled before it was watched, so that no hook would run in it: whatever is compiled in this"
            f" process will be compiled again when it is called next, which took {seconds:.1f} s so far."
            " Watch a model before its first compiled call",
            HookscopeWarning,
        )

    def _holds(self, compiled: Any) -> bool:
        inside = self.models()
        return isinstance(compiled, nn.Module) and any(id(module) in inside for module in compiled.modules())

    def allows_tape(self) -> bool:
        """Whether nothing compiled is called outside the watched models, as far as is known."""
        if _backends() != self._looked:
            self.look()
        if self._looked:
            self._frames = _frames()
        return not self.others

    def tape_ends(self) -> None:
        """If something was compiled while the tape was on, it will not be again, unless that was a watched model, which has a hook now."""
        if _backends() and _frames() != self._frames:
            known = len(self.placing.entries)
            self.look(again=True)
            self.others = self.others or len(self.placing.entries) == known

    def look(self, *, again: bool = False) -> None:
        """Search through all objects, which takes about 0.1 s: whenever another backend was asked for."""
        if (now := _backends()) == self._looked and not (again and now):
            return
        self._looked = now
        entries = dict(self.placing.entries)
        known, inside = {id(module): module for module in entries}, self.models()
        for module, wrapper in _compiled():
            inner = _unwrapped(module)
            self.others = self.others or (id(inner) not in inside and id(module) not in inside)
            if wrapper is not None and id(inner) in known and wrapper not in entries:
                self.placing.watch_around(wrapper, inner)


def _compiled() -> Iterator[tuple[Any, nn.Module | None]]:
    """What was given to torch.compile, each with the wrapper around it, if there is one; torch's own functions are left out."""
    wrapper = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)
    for found in gc.get_objects():  # asked for its type alone: some objects do things when they are asked for more
        if wrapper is not None and type(found) is wrapper:
            yield found.__dict__.get("_orig_mod") or found._modules.get("_orig_mod"), found
        elif type(found) is FunctionType and (given := found.__dict__.get(_ORIGINAL)) is not None:
            owner = given.__self__ if isinstance(given, MethodType) else given
            if isinstance(owner, torch.fx.GraphModule):  # what torch itself made of one of the others
                continue
            if isinstance(owner, nn.Module) or not str(getattr(given, "__module__", "")).startswith("torch."):
                yield owner, None


def _unwrapped(module: Any) -> Any:
    """The user's own module inside wrappers of torch's."""
    while isinstance(module, nn.Module):
        parts = ("module",) if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)) else WRAPPER_PARTS
        inner = next((found for name in parts if (found := module._modules.get(name)) is not None), None)
        if inner is None:
            break
        module = inner
    return module


def _backends() -> int:
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    backends = getattr(dynamo, "cached_backends", None)  # none while another thread is importing it
    if not backends or (len(backends) == 1 and _NONE in backends):
        return 0
    return sum(map(callable, list(backends.values())))


def _frames() -> int:
    return _counted("frames", "total")


def _graphs() -> int:
    return _counted("stats", "unique_graphs")


def _counted(what: str, name: str) -> int:
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return int(counters.get(what, {}).get(name, 0))
