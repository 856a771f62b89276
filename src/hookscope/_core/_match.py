"""A term bound to the sites it is resolved against: a function from a site to the calls of it that are meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TypeAlias

from ._errors import SelectionError
from ._output_path import output_keys
from ._path import ANY_DEPTH, Path, expression, subject
from ._pattern import Pattern, Want
from ._scope import Scope, names_of
from ._site import PARAM_KINDS, Kind, Site
from ._term import Both, Leaf, Not, OfClass, Predicate, Regex, Term, Union, names_kinds

Calls: TypeAlias = frozenset[int]
NO_CALL: Calls = frozenset()
EVERY_CALL: Calls = frozenset({-1})  # no call has this number; it stands for all of them, and is true where NO_CALL is false
Hit: TypeAlias = Callable[[Site], Calls]
Test: TypeAlias = Callable[[Site], bool]


@dataclass(frozen=True, slots=True)
class View:
    """What terms are resolved against: the sites, the kinds meant where none are written, and whether output paths are known yet."""

    scope: Scope
    kinds: Collection[Kind] | None = None
    leaves: bool = True

    @property
    def of_all_kinds(self) -> View:
        """The same without default kinds."""
        return replace(self, kinds=None)

    def admits(self, site: Site) -> bool:
        """Whether the site is of a default kind."""
        return self.kinds is None or site.kind in self.kinds


def bind(term: Term, view: View) -> Hit:
    """The function that finds the calls of a site; empty where the site is not meant at all."""
    if isinstance(term, Union):
        return _bind_union(term, view)
    if isinstance(term, Both):
        return _bind_both(term, view)
    if isinstance(term, Not):
        inside = bind(term.term, view.of_all_kinds)
        return lambda site: EVERY_CALL if view.admits(site) and not inside(site) else NO_CALL
    test = _bind_pattern(term, view) if isinstance(term, Pattern) else _bind_other(term, view)
    calls = EVERY_CALL if not isinstance(term, Pattern) or term.call is None else frozenset({term.call})
    return lambda site: calls if test(site) else NO_CALL


def bound_leaves(term: Term, view: View) -> Iterator[tuple[Leaf, View]]:
    """The terms that combine no others, each with the view under which it must match something."""
    if isinstance(term, Union):
        for part in term.included:
            yield from bound_leaves(part, view)
        for part in term.excluded:
            yield from bound_leaves(part, view.of_all_kinds)
    elif isinstance(term, Both):
        for part in term.parts:
            yield from bound_leaves(part, view.of_all_kinds if names_kinds(term) else view)
    elif isinstance(term, Not):
        yield from bound_leaves(term.term, view.of_all_kinds)
    else:
        yield term, view


def _bind_union(term: Union, view: View) -> Hit:
    included = [bind(part, view) for part in term.included] or [lambda site: EVERY_CALL if view.admits(site) else NO_CALL]
    excluded = [bind(part, view.of_all_kinds) for part in term.excluded]

    def hit(site: Site) -> Calls:
        calls = NO_CALL.union(*(part(site) for part in included))
        if not calls or any(part(site) for part in excluded):
            return NO_CALL
        return EVERY_CALL if EVERY_CALL & calls else calls

    return hit


def _bind_both(term: Both, view: View) -> Hit:
    parts = [bind(part, view.of_all_kinds if names_kinds(term) else view) for part in term.parts]

    def hit(site: Site) -> Calls:
        found = [part(site) for part in parts]
        chosen = [calls for calls in found if calls != EVERY_CALL]
        return frozenset.intersection(*chosen) if chosen else EVERY_CALL

    return hit


def _bind_other(term: Regex | OfClass | Predicate, view: View) -> Test:
    if isinstance(term, Regex):
        search = term.regex.search
        return lambda site: view.admits(site) and any(map(search, _full_paths(site)))
    if isinstance(term, OfClass):
        name = term.name
        return lambda site: name in site.bases and view.admits(site)
    return lambda site: view.admits(site) and _holds(term, site)


def _full_paths(site: Site) -> list[str]:
    return [site.full_path, *(f"{site.model}.{alias}" if site.model else alias for alias in site.aliases)]


def _holds(term: Predicate, site: Site) -> bool:
    try:
        return bool(term.holds(site))
    except Exception as error:
        raise SelectionError(f"the predicate {term.title} raised {type(error).__name__} on site {site.name!r}: {error}") from error


def _bind_pattern(pattern: Pattern, view: View) -> Test:
    at = bind_path(pattern.path, view.scope)
    below = bind_path((*pattern.path, ANY_DEPTH), view.scope) if pattern.of_parameters else at
    wants = pattern.wants

    def test(site: Site) -> bool:
        if not (any(_is_wanted(site, want, view.leaves) for want in wants) if wants else view.admits(site)):
            return False
        return below(site) if site.kind in PARAM_KINDS else at(site)

    return test


def _is_wanted(site: Site, want: Want, leaves: bool) -> bool:
    if site.kind != want.kind or not (site.label == want.label or fnmatchcase(site.label, want.label)):
        return False
    return not (leaves and want.keys) or output_keys(site.output_path)[: len(want.keys)] == want.keys


def bind_path(path: Path, scope: Scope) -> Test:
    """Whether one of a site's names matches. Indices count within the site's own model."""
    if path[:2].count("module"):
        path = scope.visible(path)
    if all(isinstance(part, str) for part in path):
        one = re.compile(expression(path, {})).fullmatch
        return lambda site: any(one(subject(name)) for name in names_of(site))
    each = {model: re.compile(expression(path, indices)).fullmatch for model, indices in scope.indices.items()}
    return lambda site: site.model in each and any(each[site.model](subject(name)) for name in names_of(site))
