"""What a mapping of selections to ops means for one model: for each site the ops that act there, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from ..._core._errors import UsageError
from ..._core._select import Matcher, select, select_sites
from ..._core._site import Kind, Site
from ..._taps._inventory import candidates
from ._op import Op

EDITABLE: tuple[Kind, ...] = ("input", "output", "output_grad", "param_grad")
_NOWHERE = '["\0"]'  # an output path that no output has


@dataclass(frozen=True, slots=True)
class Act:
    """An op on one tensor of a site, in the calls that are meant: None for all."""

    number: int
    op: Op
    path: str
    site: Site
    name: str
    calls: frozenset[int] | None

    def now(self, *, call: int, step: int) -> bool:
        """Whether it is to be done in this call."""
        return (self.calls is None or call in self.calls) and self.op.where.acts(call=call, step=step)


@dataclass(frozen=True, slots=True)
class Planned:
    """An op as it was asked for, at one site: `number` tells the entries of the mapping apart, `text` names it in a message.

    `matcher` knows sites with output paths, `without_paths` those that stand for a whole output. What was found once is remembered in
    `known`, since the structure of an output seldom changes.
    """

    number: int
    text: str
    op: Op
    matcher: Matcher
    without_paths: Matcher
    known: dict[tuple[tuple[str, bool], ...], list[Act]] = field(default_factory=dict, compare=False, repr=False)

    def timed(self, site: Site) -> bool:
        """Whether it has to be known which call of the site it is."""
        return self.op.timed or self.without_paths.calls(site) is not None

    def acts(self, site: Site, found: Sequence[tuple[str, torch.Tensor]]) -> list[Act]:
        """On the tensors that are meant: those on the selection's output path, or else the first of floating-point numbers."""
        key = tuple([(path, tensor.is_floating_point() or tensor.is_complex()) for path, tensor in found])
        if (acts := self.known.get(key)) is None:
            acts = self.known[key] = [act for path in self._paths(site, key) for act in self._act(site, path)]
        return acts

    def _paths(self, site: Site, found: tuple[tuple[str, bool], ...]) -> list[str]:
        if self.matcher.matches(replace(site, output_path=_NOWHERE)):
            floating = [path for path, is_floating in found if is_floating]
            return (floating or [path for path, _ in found])[:1]
        return [path for path, _ in found]

    def _act(self, site: Site, path: str) -> Iterator[Act]:
        of_path = replace(site, output_path=path)
        chosen = [self.matcher.calls(named) for named in _named(of_path)]
        if any(calls is None or calls for calls in chosen):
            calls = None if None in chosen else frozenset[int]().union(*(some for some in chosen if some is not None))
            yield Act(self.number, self.op, path, of_path, of_path.name, calls)


@dataclass(frozen=True, slots=True)
class Target:
    """A site, and what is done there, in order."""

    site: Site
    planned: tuple[Planned, ...]

    @property
    def timed(self) -> bool:
        """Whether it has to be known which call it is."""
        return any(one.timed(self.site) for one in self.planned)


def plan(model: nn.Module, edits: Mapping[Any, Op | Iterable[Op]]) -> list[Target]:
    """Every site that is edited. Raises `SelectionError` where a selection matches nothing, `UsageError` for what cannot be edited."""
    if not isinstance(edits, Mapping) or not edits:
        raise UsageError(f'edits={edits!r}: give a mapping from selections to ops, such as {{"encoder.3": hs.scale(0.5)}}')
    possible = list(candidates(model))
    ops: dict[Site, list[Planned]] = {}
    number = 0
    for selection, given in edits.items():
        chosen = [site for site in select_sites(possible, selection, kinds=["output"], leaves=False) if _editable(site, selection)]
        matcher, without = (select(selection).among(possible, kinds=["output"], leaves=leaves) for leaves in (True, False))
        for op in _ops(selection, given):
            for site in chosen:
                op.check(site)
                ops.setdefault(site, []).append(Planned(number, f"{op!r} on {selection!r}", op, matcher, without))
            number += 1
    return [Target(site, tuple(planned)) for site, planned in ops.items()]


def _named(site: Site) -> list[Site]:
    """The site as it may be selected: a call's only argument, a tensor, has no output path, and may be called `[0]` as among several."""
    return [site, replace(site, output_path="[0]")] if site.kind == "input" and not site.output_path else [site]


def _editable(site: Site, selection: Any) -> bool:
    if site.kind not in EDITABLE:
        raise UsageError(f"{selection!r} means {site.name}: a {site.kind} cannot be edited; choose one of {', '.join(EDITABLE)}")
    return True


def _ops(selection: Any, given: Any) -> list[Op]:
    ops = [given] if isinstance(given, Op) else given
    if not isinstance(ops, list | tuple) or not ops or not all(isinstance(op, Op) for op in ops):
        raise UsageError(f"{selection!r}: {given!r} is no op: give one such as hs.zero() or hs.scale(0.5), or a list of them")
    return list(ops)
