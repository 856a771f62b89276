"""What a selection asks of one model: the modules to hook, the parameters to read, and which tensors to keep once they turn up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property

from torch import nn

from ..._core._errors import SelectionError, UsageError
from ..._core._match import EVERY_CALL, View, bind
from ..._core._miss import alternatives
from ..._core._pattern import Pattern, Want
from ..._core._scope import Scope
from ..._core._select import Matcher, Selectable, Selection, select, select_sites
from ..._core._site import MODULE_KINDS, PARAM_KINDS, Kind, Site
from ..._core._term import Term, Union, leaves
from ..._taps._inventory import NamedModule, bases, candidates, modules

UNWRITTEN: tuple[Kind, ...] = ("output",)  # what a path without a kind stands for


@dataclass(frozen=True)
class Wanted:
    """`sites` are those that may deliver, before it is known which tensors there are inside; `labels` are the functions to be seen."""

    selection: Selection
    inside: tuple[NamedModule, ...]
    sites: tuple[Site, ...]
    every: tuple[Site, ...]
    labels: tuple[str, ...]
    matcher: Matcher

    @cached_property
    def _by_module(self) -> dict[str, list[Site]]:
        found: dict[str, list[Site]] = {}
        for site in self.sites:
            if site.kind not in PARAM_KINDS and not site.label:
                found.setdefault(site.path, []).append(site)
        return found

    def of_module(self, path: str) -> list[Site]:
        """The sites of a module, functions apart."""
        return self._by_module.get(path, [])

    def of_function(self, path: str, name: str) -> Site | None:
        """The site of what a function called `name` returns in the module, if it is wanted."""
        if path not in self._with_functions or not any(fnmatchcase(name, label) for label in self.labels):
            return None
        return replace(self._with_functions[path], label=name)

    @cached_property
    def _with_functions(self) -> dict[str, Site]:
        return {site.path: site for site in self.sites if site.label}

    def last_calls(self, call: int | str) -> dict[Site, int | None]:
        """site of a module -> the last call of it that is wanted, None for all of them."""
        found: dict[Site, int | None] = {}
        matcher = self.selection.among(self.every, kinds=UNWRITTEN, leaves=False)
        for site in self.sites:
            if site.kind in ("input", "output") and not site.label:
                calls = matcher.calls(site)
                found[site] = call if isinstance(call, int) else None if calls is None else max(calls)
        return found

    @property
    def comes_in_forward(self) -> bool:
        """Whether it is known which modules deliver it, and all of it in the forward."""
        return not self.labels and not self.has_gradients

    def parameters(self, kind: Kind) -> list[Site]:
        """The parameters wanted."""
        return [site for site in self.sites if site.kind == kind]

    @property
    def has_parameters(self) -> bool:
        """Whether any is wanted, or its gradient."""
        return any(site.kind in PARAM_KINDS for site in self.sites)

    @cached_property
    def has_gradients(self) -> bool:
        """Whether anything arrives only in a backward."""
        return any(site.kind in ("output_grad", "param_grad") for site in self.sites)


def resolve(model: nn.Module, selection: Selectable) -> Wanted:
    """Raises `SelectionError` where a part of the selection matches no site of the model."""
    chosen, inside = select(selection), tuple(modules(model))
    labels = tuple(dict.fromkeys(_labels(chosen.term)))
    every = [*_of_modules(inside, labels), *(_of_parameters(model) if _asks_for_parameters(chosen.term) else ())]
    try:
        sites = select_sites(every, chosen, kinds=UNWRITTEN, leaves=False)
    except SelectionError:
        _refuse_containers(chosen, inside)
        # once more with the parameters: a path without a kind may be that of one
        sites = select_sites([*_of_modules(inside, labels), *_of_parameters(model)], chosen, kinds=UNWRITTEN, leaves=False)
    if any(site.kind == "update" for site in sites):
        raise UsageError("an update is what an optimizer's step did, and no forward has one: record it with hookscope.watch")
    return Wanted(chosen, inside, tuple(sites), tuple(every), labels, chosen.among(every, kinds=UNWRITTEN))


def _of_modules(inside: Sequence[NamedModule], labels: Sequence[str]) -> Iterator[Site]:
    """The sites of modules that can be called, and of the functions in them."""
    one_each = {type(named.module): named.module for named in inside}  # a model has many modules of few classes
    known = {kind: (bases(module), _has_forward(kind)) for kind, module in one_each.items()}
    for named in inside:
        of, called = known[type(named.module)]
        for kind in MODULE_KINDS if called else ():
            yield Site(-1, named.path, kind, module=named.path, bases=of, aliases=named.aliases)
        for label in labels:
            yield Site(-1, named.path, "output", label=_plain(label), module=named.path, aliases=named.aliases)


def _of_parameters(model: nn.Module) -> list[Site]:
    return [site for site in candidates(model) if site.kind in PARAM_KINDS]


def _asks_for_parameters(term: Term) -> bool:
    """Whether a kind of parameters is written out; without one, none is meant."""
    return any(isinstance(leaf, Pattern) and leaf.of_parameters for leaf in leaves(term))


def _refuse_containers(chosen: Selection, inside: Sequence[NamedModule]) -> None:
    for named in inside:
        site = Site(-1, named.path, "output", module=named.path)
        if not _has_forward(type(named.module)) and chosen.among([site], kinds=UNWRITTEN).matches(site):
            raise SelectionError(
                f"{named.path!r} is a {type(named.module).__name__}, which is never called: choose what is in it, '{named.path}.*'"
            )


def _has_forward(kind: type[nn.Module]) -> bool:
    """Whether its modules can be called at all: a `ModuleList` cannot. A scripted class cannot be asked for its `forward`."""
    return any("forward" in vars(c) for c in kind.__mro__ if c is not nn.Module)


def _labels(term: Term) -> Iterator[str]:
    """The functions that the selection names: `attn:output/softmax`."""
    for leaf in leaves(term):
        if isinstance(leaf, Pattern):
            yield from (want.label for want in leaf.wants if want.label and want.kind == "output")


def _plain(label: str) -> str:
    """A label that the pattern matches."""
    return label.replace("*", "any")


def parts(term: Term) -> Iterator[Term]:
    """The terms of which each has to deliver something: `fc:input,output` is two."""
    for part in term.included if isinstance(term, Union) and term.included else [term]:
        for one in alternatives(part) if isinstance(part, Pattern) else [part]:
            wants = one.wants if isinstance(one, Pattern) else ()
            yield from (
                [replace(one, wants=(want,), tail=_written(want)) for want in wants]
                if isinstance(one, Pattern) and len(wants) > 1
                else [one]
            )


def _written(want: Want) -> str:
    steps = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in want.keys)
    return f":{want.kind}{'/' + want.label if want.label else ''}{steps}"


def undelivered(wanted: Wanted, found: Sequence[tuple[Site, int]]) -> list[Term]:
    """The parts of the selection that nothing in `found`, sites and calls, answers to."""
    view = View(Scope([*wanted.every, *(site for site, _ in found)]), UNWRITTEN)
    hits = [(part, bind(part, view)) for part in parts(wanted.selection.term)]
    return [part for part, hit in hits if not any(call in (calls := hit(site)) or calls == EVERY_CALL for site, call in found)]
