"""Which hooks go on which modules of a model, and how they all come off again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from .._core._errors import AttachError
from .._core._site import Site
from .._taps._hook import Hook
from .._taps._inventory import NamedModule, bases, clean, every_name, modules
from ._activations import Activations
from ._chosen import Chosen
from ._compiled_hook import Place, TracedHook
from ._local_gradients import by_reducer, watch_local_gradients
from ._micro_gradients import watch_micro_gradients
from ._owner import Owner
from ._returned import returned
from ._seat import Seat
from ._shortcut import Shortcut
from ._tap import Tap


class Placing:
    """All hooks of one attach go on, or none; `close` takes everything off, whatever has become of the models since."""

    def __init__(self, activations: Activations) -> None:
        self.activations = activations
        self.owner = Owner()
        self.shortcut: Shortcut | None = None
        self.taps: list[Tap] = []
        self._seats: list[Seat] = []
        self._seated = True
        self.pinned: Callable[[], bool] = lambda: False  # whether hooks stay on, since something is compiled
        self.returned: Callable[[], None] = lambda: None  # called when they were off while that was compiled
        self._with_micros: set[str] = set()  # models whose parameters carry hooks
        self._with_locals: set[str] = set()  # models whose gradients are read before they are averaged over ranks
        self.unhookable: list[Site] = []
        self._around: nn.Module | None = None  # a wrapper around it has told of its forward, which is under way
        self.entries: weakref.WeakKeyDictionary[nn.Module, Hook] = weakref.WeakKeyDictionary()
        self._returns: weakref.WeakKeyDictionary[nn.Module, Site] = weakref.WeakKeyDictionary()  # of each entry, what it gives
        self._undo = ExitStack()
        self.known: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def attach(self, model: nn.Module, name: str, chosen: Chosen) -> None:
        """Hook the chosen modules of `model` that are not known yet."""
        fresh = [named for named in modules(model) if named.module not in self.known]
        with ExitStack() as undo:
            ways_in = {(name, entry.path): entry for entry in entries(model, fresh)}
            inner = replace(chosen, inputs=chosen.inputs - ways_in.keys())  # what an entry is given, it reads itself
            taps = [self._tap(undo, named, name, inner) for named in fresh if (name, named.path) in chosen.modules]
            for place, entry in ways_in.items():
                self.watch_entry(entry.module, name, entry.path, undo, within=place in chosen.inputs)
            if chosen.micros and name not in self._with_micros:
                watch_micro_gradients(model, name, chosen, self.activations, undo)
                self._with_micros.add(name)
            if name not in self._with_locals and by_reducer(model):
                watch_local_gradients(model, name, chosen, self.activations, undo)
                self._with_locals.add(name)
            self._undo.push(undo.pop_all())
        if not self._seated:
            for seat in self._seats:
                seat.leave()
        self.known.update(named.module for named in fresh)
        self.taps += [tap for tap in taps if tap is not None]

    def watch_entry(self, module: nn.Module, model: str, path: str, undo: ExitStack | None = None, *, within: bool = False) -> Hook:
        """Notice when a forward of the training enters through `module`, and read what goes in. Returns the hook that does.

        `within`: read it also where the module is called within another one's forward.
        """
        stack = self._undo if undo is None else undo
        activations, owner = self.activations, self.owner
        site = Site(-1, path, "input", model=model, module=path, bases=bases(module))
        self._returns[module] = replace(site, kind="output")

        def entering(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
            if module is not self._around and owner.enters(module, model):
                activations.enter(site, module, args, kwargs or {}, within=within)

        short = self.shortcut
        enter = Hook(entering if short is None else partial(short.enters, entering))
        leaving, returns = self._leaving(self._returns[module]), self._returns[module]

        def left(module: nn.Module, args: Any, output: Any) -> None:
            if module is not self._around:
                leaving(module, args, output)

        stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
        stack.callback(
            module.register_forward_hook(Hook(left if short is None else partial(short.leaves, left, returns)), always_call=True).remove
        )
        self.entries[module] = enter
        return enter

    def watch_around(self, wrapper: nn.Module, entry: nn.Module) -> None:
        """Notice the same at a wrapper around `entry`, inside which the hooks of `entry` may run or not."""
        entering, returns, short = self.entries[entry], self._returns[entry], self.shortcut
        leaving = self._leaving(returns) if short is None else partial(short.leaves, self._leaving(returns), returns)
        self.entries[wrapper] = entering

        def surround(module: nn.Module | None) -> None:
            self._around = module
            if short is not None:
                short.around = module

        def around(_wrapper: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
            entering.action(entry, args, kwargs)
            surround(entry)

        def left(_wrapper: nn.Module, args: Any, output: Any) -> None:
            surround(None)
            leaving(entry, args, output)

        self._undo.callback(wrapper.register_forward_pre_hook(Hook(around), with_kwargs=True).remove)
        self._undo.callback(wrapper.register_forward_hook(Hook(left), always_call=True).remove)

    def _leaving(self, returns: Site) -> Callable[..., None]:
        def leaving(_module: nn.Module, _args: Any, output: Any) -> None:
            if not self.owner.muted:
                self.activations.leave(returns, output)

        return leaving

    @property
    def lacking(self) -> bool:
        """Whether hooks are off that have to be on again before what has been compiled is called."""
        return not self._seated and self.pinned()

    def seat(self, on: bool) -> None:
        """Take the hooks off that only read what modules return, or put them on again. A graph would be compiled anew each time."""
        pinned = not on and self.pinned()
        on = on or pinned
        if on != self._seated:
            self._seated = on
            for seat in self._seats:
                seat.take() if on else seat.leave()
            if pinned:
                self.returned()

    def close(self) -> None:
        """Take every hook off."""
        self._seats.clear()
        self._undo.close()

    def _tap(self, undo: ExitStack, named: NamedModule, model: str, chosen: Chosen) -> Tap | None:
        activations, owner, module = self.activations, self.owner, named.module
        tap = Tap(Site(-1, named.path, "output", model=model, module=named.path, bases=bases(module), aliases=named.aliases))

        place = Place(tap, activations.traced)

        def after(module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
            if not owner.muted:  # `rest` may be without keywords: torch's fusion of layers moves hooks, and forgets who takes them
                activations.after_forward(tap, (module, args, *rest))

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
            if not owner.muted:
                activations.before_forward(tap, args, kwargs or {})

        try:
            hook = TracedHook(returned(tap, activations, after), place)
            seat = Seat(module, hook, Hook(before) if (model, named.path) in chosen.inputs else None)
            undo.callback(seat.leave)
            seat.take()
        except Exception as error:
            if isinstance(module, torch.jit.ScriptModule):  # its code runs without Python, and so without hooks
                self.unhookable.append(tap.site)
                return None
            where, kind = named.path or "(root)", type(module).__name__
            rest = f"['**', '~{where}.**']" if named.path else "'**:param,param_grad,update'"
            raise AttachError(f"module {where!r}, a {kind}, takes no hook ({error}); leave it out: select={rest}") from error
        self._seats.append(seat)
        activations.traced.places.append(place)
        return tap


def entries(model: nn.Module, among: list[NamedModule]) -> list[NamedModule]:
    """Those modules through which a forward can enter: the model, or, where it is only a holder without a forward, those inside it.

    A scripted module takes no hook: what enters through it is not read, its parameters are.
    """
    found = {id(module) for module in _with_forward(model) if not isinstance(module, torch.jit.ScriptModule)}
    wanted = {clean(model, name) for name, module in every_name(model.named_modules) if id(module) in found}
    return [named for named in among if named.path in wanted]  # for a wrapper, the module inside it


def _with_forward(module: nn.Module) -> list[nn.Module]:
    if getattr(type(module), "forward", None) is not nn.Module.forward:
        return [module]
    return [inner for child in module.children() for inner in _with_forward(child)]
