"""Hears every call of every module of a model: entry and exit, with its arguments, its outputs and its place in the order."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from ..._taps._hook import Hook
from ..._taps._inventory import NamedModule, modules


@dataclass(slots=True)
class Heard:
    """One call while it runs. `note` is for the listener."""

    path: str
    call: int
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    entered: int
    left: int = -1
    inside: int = 0
    note: Any = None


class Ear(Protocol):
    """Who listens. `deaf` while it runs modules itself."""

    deaf: bool

    def entering(self, heard: Heard) -> None:
        """A module is about to run."""

    def leaving(self, heard: Heard, output: Any) -> None:
        """It has run."""


@dataclass(slots=True)
class _Order:
    ear: Ear
    open: list[Heard] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    entered: int = 0
    left: int = 0
    thread: int = field(default_factory=threading.get_ident)

    @property
    def away(self) -> bool:
        """Called by the listener itself, by another thread, or by a backward that computes a checkpointed part again."""
        return self.ear.deaf or self.thread != threading.get_ident() or torch._C._current_graph_task_id() >= 0

    def enter(self, named: NamedModule, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.away:
            return
        heard = Heard(named.path, self.counts[named.path], module, args, kwargs, self.entered)
        self.counts[named.path] += 1
        self.entered += 1
        self.open.append(heard)
        self.ear.entering(heard)

    def leave(self, module: nn.Module, _args: tuple[Any, ...], _kwargs: dict[str, Any], output: Any) -> None:  # what torch passes
        if self.away:
            return
        while self.open and self.open[-1].module is not module:  # of calls that raised, and were caught further out
            self.open.pop()
        if self.open:
            heard = self.open.pop()
            heard.inside = self.entered - heard.entered - 1
            heard.left = self.left
            self.left += 1
            self.ear.leaving(heard, output)


@contextmanager
def listening(model: nn.Module, ear: Ear) -> Iterator[None]:
    """While it is open, `ear` hears `model`; afterwards no hook is left, whatever happened."""
    order = _Order(ear)
    with ExitStack() as placed:
        for named in modules(model):
            entry, exit_ = Hook(partial(order.enter, named)), Hook(order.leave)
            placed.callback(named.module.register_forward_pre_hook(entry, with_kwargs=True).remove)
            placed.callback(named.module.register_forward_hook(exit_, with_kwargs=True).remove)
        yield
