"""What the hooks of a watch did not see, noted in the run: the events that the rule `blind` reads."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn

from .._core._site import ROOT, Site
from .._taps._inventory import modules
from ._activations import Activations
from ._placing import Placing

Place = tuple[str, str]  # the name of a model, the path of a module in it


class Blindness:
    """`look` while the models exist, `tell` at the end."""

    def __init__(self, placing: Placing, activations: Activations) -> None:
        self.placing = placing
        self.activations = activations
        self._compiled: set[Place] = set()
        self._holders: set[Place] = set()  # modules without a forward of their own: nobody calls a ModuleList

    def look(self, models: Iterable[tuple[str, nn.Module]]) -> None:
        """Of the modules that have not fired: which run inside a compiled graph, which cannot be called at all?"""
        if all(tap.fired for tap in self.placing.taps):
            return
        named = [(name, model, modules(model)) for name, model in models]
        compiled = _inside_compiled([model for _, model, _ in named])
        for name, _, inside in named:
            self._compiled |= {(name, each.path) for each in inside if id(each.module) in compiled}
            self._holders |= {(name, each.path) for each in inside if _is_holder(each.module)}

    def tell(self, event: Callable[..., None], plain: Callable[[Site], str]) -> None:
        """Note each kind of blindness there was; `plain` writes the name of a site."""
        for name, sites in self._kinds():
            if sites:
                event(name, modules=[plain(site) for site in sites], classes=[site.bases[0] if site.bases else "" for site in sites])
        if missed := self.placing.owner.missed:
            event("other_threads", models=sorted(name or ROOT for name in missed))
        if lost := self.activations.lost_calls + self.activations.extras.lost:
            event("lost_calls", calls=lost)

    def _kinds(self) -> Iterator[tuple[str, list[Site]]]:
        taps, active = self.placing.taps, self.activations
        untapped = active.traced.untapped
        silent = [tap.site for tap in taps if not tap.fired and (tap.site.model, tap.site.path) not in self._holders]
        yield "never_fired", silent
        yield "compiled", [site for site in silent if (site.model, site.path) in self._compiled]
        yield "unhookable", self.placing.unhookable
        yield "skipped_transforms", [tap.site for tap in taps if tap in active.transformed]
        yield "untapped_gradients", [tap.site for tap in taps if tap in untapped]
        yield "untraced_outputs", [tap.site for tap in taps if tap in active.traced.beyond]
        yield "lost_gradients", [tap.site for tap in taps if tap in active.views.lost]


def _is_holder(module: nn.Module) -> bool:
    # A scripted module's class raises where one asks for its forward.
    return getattr(type(module), "forward", None) is nn.Module.forward and "forward" not in module.__dict__


def _inside_compiled(models: list[nn.Module]) -> set[int]:
    """Ids of the modules that run inside a graph of torch.compile: it wraps a module in another one, or sets its `_compiled_call_impl`."""
    every: list[Any] = [module for model in models for module in model.modules()]
    wrapper = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)
    roots = [module for module in every if getattr(module, "_compiled_call_impl", None) is not None]
    if wrapper is not None:
        # The wrapper may lie outside the models; a search through all objects takes about 0.1 s, so not without need.
        among = gc.get_objects() if _has_compiled() else every
        roots += [found for found in among if issubclass(type(found), wrapper)]
    return {id(module) for root in roots for module in root.modules()}


def _has_compiled() -> bool:
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("stats", {}).get("unique_graphs"))
