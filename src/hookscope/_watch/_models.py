"""The models that are watched, and what is known of them: looked through again whenever they have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .._core._site import ROOT, Site
from .._taps._flat import pieces
from .._taps._inventory import candidates, modules
from .._taps._leaf_parameters import owners_of, parameters_behind
from .._taps._parts import is_distributed, tensor_group
from ._chosen import choose
from ._local_gradients import is_averaged
from ._parameters import Parameters
from ._placing import Placing
from ._settings import Settings
from ._table import SiteTable

ModelRef = Callable[[], nn.Module | None]  # returns the model for as long as it exists


class Models:
    """Puts hooks on models through `placing`; `event` notes in the run what was found."""

    def __init__(self, settings: Settings, table: SiteTable, parts: tuple[Placing, Parameters], event: Callable[..., None]) -> None:
        self.settings = settings
        self.table = table
        self.placing, self.parameters = parts
        self.event = event
        self.changed = False  # something was registered in a watched module
        self._candidates: list[Site] = []
        self._by_name: dict[str, ModelRef] = {}
        self._strangers: set[int] = set()  # parameters of optimizers or losses that belong to no watched model

    def __len__(self) -> int:
        return len(self._by_name)

    def alive(self) -> list[tuple[str, nn.Module]]:
        """The models that still exist, with their names."""
        return [(name, model) for name, get in self._by_name.items() if (model := get()) is not None]

    def add(self, models: dict[str, ModelRef], *, strict: bool) -> None:
        """Watch these models too. If `strict`, a selection that matches nothing in them is an error."""
        alive = {name: model for name, get in models.items() if (model := get()) is not None}
        fresh = [site for name, model in alive.items() for site in candidates(model, name)]
        known = [site for site in self._candidates if site.model not in alive]
        chosen = choose(self.settings.selection, known + fresh, strict=strict)
        for name, model in alive.items():
            self.placing.attach(model, name, chosen)
            self.parameters.attach(model, name)
        for model in alive.values():
            if is_averaged(model):
                self.event("averaged")
            if len(together := tensor_group(model)) > 1:
                self.event("same_samples", ranks=together)
        self._candidates = known + fresh
        self._by_name |= models
        self.table.keeps = chosen.keeps

    def check_selection(self) -> None:
        """Raise `SelectionError` if the selection, or a part of it, matches nothing in the models so far."""
        choose(self.settings.selection, self._candidates, strict=True)

    def enter_late(self, model: nn.Module, name: str, called: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        """A forward was entering through `called`, inside `model`, when that was added: it is under way, though its hook did not see it.

        `call` is its arguments, by position and by name.
        """
        path = next((named.path for named in modules(model) if named.module is called), None)
        if path is not None:  # a wrapper has no path of its own: the module inside it is entered next, and has its hook
            enter = self.placing.entries.get(called) or self.placing.watch_entry(called, name, path)
            enter(called, *call)

    def registered(self, holder: nn.Module) -> None:
        """Something was put into `holder`."""
        self.changed = self.changed or holder in self.placing.known

    def refresh(self) -> None:
        """Look through the models again if they have changed."""
        if self.changed:
            self.changed = False
            self._again(lambda model: True)

    def names(self) -> dict[int, str]:
        """The paths of all watched modules, by id."""
        several = len(self._by_name) > 1
        return {
            id(named.module): ".".join(part for part in (name if several else "", named.path) if part) or ROOT
            for name, model in self.alive()
            for named in modules(model)
        }

    def plain(self, site: Site) -> Site:
        """As a run of one model names it: without the model's name."""
        return site if len(self._by_name) > 1 else replace(site, model="")

    def mine(self, optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
        """The watched parameters of `optimizer`. If one is new to a watched model, that model is looked through again."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        mine = self.parameters.among(parameters)
        if len(mine) == len(parameters):
            return mine
        self._meet(parameters)
        return self.parameters.among(parameters)

    def look_behind(self, roots: Iterable[torch.Tensor]) -> None:
        """Does the loss depend on parameters of which no watched model knows?

        Not asked where parameters are spread over ranks: the loss then depends on what was gathered from them.
        """
        if not self._spread():
            hidden = self._meet(parameters_behind(roots))
            if hidden:
                self.event("hidden_parameters", parameters=owners_of(hidden[:8]), count=len(hidden))

    def _spread(self) -> bool:
        return any(map(is_distributed, self.parameters.alive())) or any(pieces(model) for _, model in self.alive())

    def _meet(self, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        """Those that turn out to belong to no watched model, told once."""
        unknown = {id(p) for p in parameters if self.parameters.get(p) is None} - self._strangers
        if unknown:
            self._again(lambda model: any(id(p) in unknown for p in model.parameters()))
        strangers = [p for p in parameters if id(p) in unknown and self.parameters.get(p) is None]
        self._strangers |= {id(p) for p in strangers}
        return strangers

    def _again(self, concerned: Callable[[nn.Module], bool]) -> None:
        for name, get in list(self._by_name.items()):
            if (model := get()) is not None and concerned(model):
                before = len(self.placing.taps), len(self.parameters)
                self.add({name: get}, strict=False)
                if (len(self.placing.taps), len(self.parameters)) != before:
                    self.event("attached", model=name)
