"""Selections: the one language in which sites are chosen, everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ._errors import SelectionError
from ._match import EVERY_CALL, Hit, View, bind, bound_leaves
from ._miss import alternatives, explain
from ._pattern import Pattern, parse
from ._scope import Scope
from ._site import Kind, Site
from ._term import Both, Not, OfClass, Predicate, Regex, Term, Union, exclude, expressed, shown

Selectable: TypeAlias = (
    "str | re.Pattern[str] | type[Any] | Callable[[Site], object] | Selection | Sequence[Selectable] | AbstractSet[Selectable]"
)


@dataclass(frozen=True, slots=True, repr=False)
class Selection:
    """A choice of sites, as `select` makes it; `|`, `&` and `~` combine selections as sets.

    It knows no model until it is given sites. It can be hashed and compared, and pickled unless it holds a lambda.

    >>> select("encoder.*") & ~select("**:output_grad")
    select('encoder.*') & ~select('**:output_grad')
    """

    term: Term

    def __or__(self, other: Selectable) -> Selection:
        return Selection(Union((self.term, select(other).term)))

    def __ror__(self, other: Selectable) -> Selection:
        return select(other) | self

    def __and__(self, other: Selectable) -> Selection:
        return Selection(Both((self.term, select(other).term)))

    def __rand__(self, other: Selectable) -> Selection:
        return select(other) & self

    def __invert__(self) -> Selection:
        return Selection(exclude(self.term))

    def __repr__(self) -> str:
        return expressed(self.term)

    def among(self, sites: Sequence[Site], *, kinds: Sequence[Kind] | None = None, leaves: bool = True) -> Matcher:
        """The selection resolved against `sites`: indices count among them. Matching nothing is no error here.

        `kinds` and `leaves` as in `select_sites`. The matcher may be asked about sites that are found later.

        >>> matcher = select("h[-1]:output@2").among([Site(i, f"h.{i}", "output") for i in range(4)])
        >>> matcher.matches(Site(9, "h.3", "output", output_path="[0]")), matcher.calls(Site(3, "h.3", "output"))
        (True, frozenset({2}))
        """
        return Matcher(bind(self.term, View(Scope(sites), kinds, leaves)))


@dataclass(frozen=True, slots=True)
class Matcher:
    """A selection resolved against the sites of one model or run."""

    hit: Hit

    def matches(self, site: Site) -> bool:
        """Whether the site is selected, in some call."""
        return bool(self.hit(site))

    def calls(self, site: Site) -> frozenset[int] | None:
        """The calls of the site that are selected: None for every one, empty where the site is not selected."""
        calls = self.hit(site)
        return None if calls == EVERY_CALL else calls


@dataclass(frozen=True, slots=True)
class Key:
    """A selection and the one call of each site that is meant, None for all."""

    selection: Selection
    call: int | None = None


def select(*parts: Selectable) -> Selection:
    """The sites that any of the parts matches, without those that a part with `~` excludes.

    A part is

    - a path as in `named_modules()` or `named_parameters()`, with `*` and `?` within a part of the path, `**` across parts, and children
      by number: `h[3:6].mlp`, `h[-2:]`, `h[0,3]`. `(root)` is the model itself. Names that wrappers add may be left out or kept;
      with several models `G.0` is in model G and `0` in any.
    - the same with a kind, `encoder.*:output`, or several, `fc:input,output`; a label, `fc.weight:param_grad/preclip` (`/*` for any);
      a way into a structured output, `lstm:output[1]`, which takes all below it; one call of a module that is called often, `block@2`.
    - a compiled regular expression, searched in the full path
    - a module class: modules of it and of its subclasses
    - a function of a `Site`
    - a list, tuple or set of parts, or another selection.

    `"~..."` or `~select(...)` excludes; only exclusions mean all sites but those. A module without a kind stands for its own sites and the
    parameters that it owns directly; with a kind of parameters, `encoder:param_grad`, for all parameters in it. A parameter that is tied
    answers to each of its names. A kind without a label is the unlabelled site alone.
    Raises `SelectionError` for what is malformed, with the position.

    >>> select("encoder.*", "~encoder.0")
    select('encoder.*', '~encoder.0')
    >>> select("fc:outptu")
    Traceback (most recent call last):
    ...
    hookscope._core._errors.SelectionError: malformed selection 'fc:outptu' at position 3: unknown kind 'outptu': did you mean 'output'? ...
    """
    terms = [term for part in parts for term in _terms(part)]
    if not terms:
        raise SelectionError("an empty selection selects nothing: pass at least one path, such as '**' for every site")
    included = tuple(term for term in terms if not isinstance(term, Not))
    excluded = tuple(term.term for term in terms if isinstance(term, Not))
    return Selection(terms[0] if len(terms) == 1 else Union(included, excluded))


def _terms(part: Selectable) -> list[Term]:
    """The terms of one part; those of a set in an order that does not change from process to process."""
    if isinstance(part, list | tuple | set | frozenset):
        terms = [term for one in part for term in _terms(one)]
        return sorted(terms, key=shown) if isinstance(part, set | frozenset) else terms
    if isinstance(part, Selection):
        return [part.term]
    if isinstance(part, str):
        pattern, excluded = parse(part)
        return [exclude(pattern) if excluded else pattern]
    return [_other_term(part)]


def _other_term(part: object) -> Term:
    if isinstance(part, re.Pattern) and isinstance(part.pattern, str):
        return Regex(part)
    if isinstance(part, type):
        return OfClass(f"{part.__module__}.{part.__qualname__}")
    if hasattr(part, "named_modules"):
        raise SelectionError(f"cannot select by a {type(part).__name__} object, which does not know its name: pass its path or its class")
    if callable(part):
        return Predicate(part)
    raise SelectionError(f"cannot select by {part!r}, a {type(part).__name__}: pass {_VALID}")


_VALID = "a path, a compiled regular expression of text, a module class, a function of a site, a selection, or a list of these"


def select_sites(sites: Sequence[Site], selection: Selectable, *, kinds: Sequence[Kind] | None = None, leaves: bool = True) -> list[Site]:
    """The selected ones of `sites`, in their order.

    `kinds` are meant where the selection names none; None means all. `leaves=False` says that the output paths of the sites are not known
    yet, as before a model has run: those in the selection are then passed over. Raises `SelectionError` where the selection, or any part
    or exclusion in it, matches nothing, naming near misses.

    >>> sites = [Site(0, "fc", "output", module="fc"), Site(1, "fc.weight", "param", module="fc")]
    >>> [site.name for site in select_sites(sites, "fc", kinds=["output"])]
    ['fc:output']
    >>> select_sites(sites, "cf:output")
    Traceback (most recent call last):
    ...
    hookscope._core._errors.SelectionError: no site matches 'cf:output': did you mean 'fc:output'?
    """
    chosen = select(selection)
    view = View(Scope(sites), kinds, leaves)
    for leaf, seen in bound_leaves(chosen.term, view):
        for one in alternatives(leaf):
            if not any(map(bind(one, seen), sites)):
                raise SelectionError(explain(one, seen))
    hit = bind(chosen.term, view)
    found = [site for site in sites if hit(site)]
    if not found:
        raise SelectionError(f"{chosen!r} selects nothing: each part matches some site, but no site is in all of them and not excluded")
    return found


def parse_key(key: str) -> Key:
    """A key of a run, `block@2:output`: the selection without the call, and the call.

    Raises `SelectionError` for what is malformed, or excludes.

    >>> parse_key("block@2:output")
    Key(selection=select('block:output'), call=2)
    """
    term = select(key).term
    if not isinstance(term, Pattern):
        raise SelectionError(f"cannot read {key!r} as a key: pass one path, such as 'encoder.0:output' or 'block@2:output'")
    return Key(Selection(replace(term, call=None)), term.call)


def describe(selection: Selectable) -> str | list[str]:
    """The selection as text that JSON can hold: the parts of a list one by one, everything else in one string.

    >>> describe(["encoder.*", "~encoder.0", re.compile("attn")])
    ['encoder.*', "re.compile('attn')", '~encoder.0']
    """
    term = select(selection).term
    if isinstance(term, Union) and not any(isinstance(part, Not) for part in term.included):
        return [_described(part) for part in (*term.included, *map(Not, term.excluded))]
    return _described(term)


def _described(term: Term) -> str:
    if isinstance(term, Pattern):
        return term.written
    if isinstance(term, Not) and isinstance(term.term, Pattern):
        return f"~{term.term.written}"
    return shown(term)
