"""One pass over the data: hooks that reduce what they see at once, and nothing left on the model afterwards."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..._core._select import Matcher
from ..._core._site import Site
from ..._taps._hook import Hook
from ..._taps._inventory import NamedModule, bases, modules
from ..._taps._leaves import leaves
from ..._taps._modes import unnoticed
from .._batch import Feed, Forward, batches, is_alone, some
from .._inner import running_eagerly
from .._turn import Turn
from .._unchanged import evaluating, unchanged
from .._unit_axis import CHANNELS_FIRST, CHANNELS_LAST
from ._activation import bounds, keeps_units, kind
from ._attending import Attending
from ._axes import Axes, Stated
from ._heard import Heard, Known
from ._mask import MaskOf, mask_of
from ._meter import Meter, Reading
from ._positions import kept
from ._readable import readable
from ._trail import Place, Trail

MOST_CALLS = 32  # of a module without parameters, each a row of its own; later ones are added to the last


@dataclass(frozen=True, slots=True)
class Options:
    """How a pass reads."""

    matcher: Matcher
    stated: Stated
    mask: MaskOf = None
    spectrum: bool = True
    attention: bool = True


def has_parameters(module: nn.Module) -> bool:
    """Whether a module or one inside it has any; `parameters()` would make names for them."""
    if any(parameter is not None for parameter in module._parameters.values()):
        return True
    return any(has_parameters(child) for child in module._modules.values() if child is not None)


class Pass:
    """What one pass has added up, by place."""

    def __init__(self, model: nn.Module, options: Options) -> None:
        self.model, self.options = model, options
        self.modules: dict[str, NamedModule] = {named.path: named for named in modules(model)}
        self.meters: dict[Place, Meter] = {}
        self.wanted: dict[Place, None] = {}  # those of the selection that were seen, in order
        self.next: dict[Place, Place] = {}  # which place took this one's tensor and kept its units
        self.alias: dict[Place, Place] = {}  # which place had returned this one's tensor before
        self.blind: dict[str, str] = {}
        self.called: set[str] = set()
        self.batches = 0
        self._turn, self._trail, self._axes = Turn(), Trail(), Axes(options.stated)
        self.attending = Attending(lambda path: self._chosen(path, "") != frozenset(), self._turn)
        self._sites: dict[tuple[str, str], tuple[Site, frozenset[int] | None]] = {}
        self._followed: set[Place] = set()  # wanted, or behind a wanted one
        self._places: dict[tuple[str, str, int], tuple[Place, bool]] = {}
        self._calls: dict[str, int] = {}
        self._mask: torch.Tensor | None = None

    def run(self, loader: Any, forward: Forward | None, *, as_is: bool) -> None:
        """Go over the data once."""
        feed, alone = Feed(self.model, forward), is_alone(loader)
        with ExitStack() as undo:
            undo.enter_context(unchanged(self.model))
            if not as_is:
                undo.enter_context(evaluating(self.model))
            for named in self.modules.values():
                self._place_hooks(named, undo)
            undo.enter_context(torch.inference_mode(mode=False))  # its tensors do not say when they are written to
            undo.enter_context(torch.no_grad())
            undo.enter_context(running_eagerly())
            undo.enter_context(self.attending.watching() if self.options.attention else nullcontext())
            for batch in some(batches(loader)):
                self._begin(batch)
                with self._turn:
                    feed.run(batch, alone=alone)
                self.batches += 1

    def _place_hooks(self, named: NamedModule, undo: ExitStack) -> None:
        path, module, attention = named.path, named.module, self.options.attention
        heard = Heard(path, module, acts=kind(module) != "other", knows_axis=isinstance(module, CHANNELS_FIRST + CHANNELS_LAST))
        is_on, find, left, passes_on = self._turn.is_on, self._trail.find, self._left, keeps_units(module)

        def before(_module: nn.Module, args: tuple[Any, ...]) -> None:
            if not is_on():
                return
            if attention:
                self.attending.enter(path)
            if passes_on:
                step = find(args[0]) if args and isinstance(args[0], torch.Tensor) else None
                heard.taken = None if step is None else step.place

        def after(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if is_on():
                unnoticed(left, heard, args, kwargs, output)

        if passes_on or attention:
            undo.callback(module.register_forward_pre_hook(Hook(before)).remove)
        undo.callback(module.register_forward_hook(Hook(after), with_kwargs=True).remove)

    def _begin(self, batch: Any) -> None:
        self._mask = self.attending.mask = mask_of(batch, self.options.mask)
        self._trail.clear()
        self._axes.clear()
        self._calls.clear()
        self.attending.clear()

    def _left(self, heard: Heard, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.options.attention:
            self.attending.leave(heard.path)
        self._returned(heard, output)
        if self.options.attention:
            self.attending.returned(heard.path, heard.module, args, kwargs, output)
        heard.taken = None

    def _returned(self, heard: Heard, output: Any) -> None:
        index, first = self._calls.get(heard.path, 0), heard.first
        if index == 0 and first is not None and type(output) is torch.Tensor and self._again(first, heard, output):
            self._calls[heard.path] = 1
            return
        self._calls[heard.path] = index + 1
        self.called.add(heard.path)
        found = leaves(output)
        if heard.knows_axis:
            self._axes.passed(heard.module, found)
        for leaf, tensor in found:
            key = leaf, min(index, MOST_CALLS - 1)
            known = heard.known.get(key)
            if known is None or not self._again(known, heard, tensor):
                heard.known.pop(key, None)
                self._take(heard, key, tensor)
        heard.first = heard.known.get(("", 0))

    def _again(self, known: Known, heard: Heard, tensor: Any) -> bool:
        """Add a tensor like the last one of its place, where all that decided about that one is as it was; else it has to be asked anew."""
        if self._mask is not None or heard.taken is not known.source:
            return False
        if not heard.knows_axis and self._axes.last != known.last:
            return False
        if self._trail.find(tensor) is not None or not known.meter.add_like(tensor, known.form, known.axis):
            return False
        self._axes.last = known.last
        self._trail.note(tensor, known.place, known.axis)
        return True

    def _site(self, path: str, leaf: str) -> tuple[Site, frozenset[int] | None]:
        """The site, and which calls of it the selection means: None for all."""
        if (path, leaf) not in self._sites:
            site = Site(-1, path, "output", output_path=leaf, module=path, bases=bases(self.modules[path].module))
            self._sites[path, leaf] = site, self.options.matcher.calls(site)
        return self._sites[path, leaf]

    def _chosen(self, path: str, leaf: str) -> frozenset[int] | None:
        return self._site(path, leaf)[1]

    def _place_of(self, path: str, leaf: str, index: int) -> tuple[Place, bool]:
        """The place of a call, and whether the selection means it.

        All calls of weights are one place, their units being the same; without weights, or where calls are named, each is its own.
        """
        known = self._places.get((path, leaf, index))
        if known is None:
            chosen = self._chosen(path, leaf)
            apart = bool(chosen) or not has_parameters(self.modules[path].module)
            known = Place(path, leaf, index if apart else 0), chosen is None or index in chosen
            self._places[path, leaf, index] = known
        return known

    def _take(self, heard: Heard, key: tuple[str, int], tensor: torch.Tensor) -> None:
        place, wanted = self._place_of(heard.path, *key)
        source = heard.taken
        behind = source in self._followed
        if not (wanted or behind) or not tensor.dim():
            return
        values = readable(tensor)
        if isinstance(values, str):
            self.blind.setdefault(place.path + place.leaf, values)
            return
        self._followed.add(place)
        if wanted:
            self.wanted[place] = None
        if source is not None and behind:
            self.next[source] = place
        axis = self._axes.of(self._site(place.path, place.leaf)[0], heard.module, values)
        step = self._trail.find(tensor)
        if step is not None and step.axis == axis and step.place in self.meters and place not in self.meters:
            self.alias[place] = step.place
            return  # the trail leads to the one that was read
        if (wanted or heard.acts) and values.numel():
            meter = self._add(place, heard.module, values, axis)
            if meter is not None and (form := meter.units.form_of(tensor, axis)):
                heard.known[key] = Known(form, self._axes.last, source, place, axis, meter)
        self._trail.note(tensor, place, axis)

    def _add(self, place: Place, module: nn.Module, values: torch.Tensor, axis: int) -> Meter | None:
        name = place.path + place.leaf
        values, axis = kept(values, axis, self._mask)
        if name in self.blind or not values.numel():
            return None
        units, meter = values.shape[axis], self.meters.get(place)
        if meter is None:
            meter = self.meters[place] = Meter(units, values.device, Reading(bounds(module), self.options.spectrum))
        known = meter.units.units
        if place in self.alias:
            self.blind[name] = "it returned another layer's tensor in some batches and one of its own in others"
        elif known != units:
            self.blind[name] = f"its number of units changes, {known} and then {units}: name their dimension with dim="
        else:
            meter.add(values, axis)
            return meter
        return None
