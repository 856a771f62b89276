"""What a selection is made of: five ways to say which sites, and three to combine them. Plain data, hashable."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import TypeAlias

from ._errors import SelectionError
from ._pattern import Pattern
from ._site import Site


@dataclass(frozen=True, slots=True)
class Regex:
    """Sites in whose full path the expression is found."""

    regex: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class OfClass:
    """Sites of modules of that class or a subclass; known by its qualified name, so that no torch is needed."""

    name: str


@dataclass(frozen=True, slots=True)
class Predicate:
    """Sites for which a function is true."""

    holds: Callable[[Site], object]

    @property
    def title(self) -> str:
        """`<lambda> at train.py:12`, or the function's name."""
        name = getattr(self.holds, "__qualname__", type(self.holds).__qualname__)
        code = getattr(self.holds, "__code__", None)
        return f"{name} at {PurePath(code.co_filename).name}:{code.co_firstlineno}" if code else name


@dataclass(frozen=True, slots=True)
class Union:
    """Sites that any of `included` matches and none of `excluded`; nothing included means all sites."""

    included: tuple[Term, ...]
    excluded: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True)
class Both:
    """Sites that all of `parts` match."""

    parts: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """All sites but those that `term` matches."""

    term: Term


Leaf: TypeAlias = Pattern | Regex | OfClass | Predicate
Term: TypeAlias = Leaf | Union | Both | Not


def leaves(term: Term) -> Iterator[Leaf]:
    """The terms that combine no others, as written from left to right."""
    if isinstance(term, Union | Both):
        for part in (*term.included, *term.excluded) if isinstance(term, Union) else term.parts:
            yield from leaves(part)
    elif isinstance(term, Not):
        yield from leaves(term.term)
    else:
        yield term


def names_kinds(term: Term) -> bool:
    """Whether kinds are written out in it, so that default kinds have nothing to say. What is excluded does not count."""
    if isinstance(term, Union):
        return any(map(names_kinds, term.included))
    if isinstance(term, Both):
        return any(map(names_kinds, term.parts))
    return isinstance(term, Pattern) and bool(term.wants)


def exclude(term: Term) -> Term:
    """The complement. A call can be chosen and not excluded: a site is hooked for all its calls or for none."""
    for leaf in leaves(term):
        if isinstance(leaf, Pattern) and leaf.call is not None:
            raise SelectionError(f"cannot exclude {leaf.written!r}: a call can be chosen, not excluded; name the calls that are wanted")
    return term.term if isinstance(term, Not) else Not(term)


def shown(term: Term) -> str:
    """The term as a part of `select(...)`."""
    if isinstance(term, Not) and isinstance(term.term, Pattern):
        return repr(f"~{term.term.written}")
    if isinstance(term, Union | Both | Not):
        return expressed(term)
    return _leaf(term)


def expressed(term: Term) -> str:
    """The term as an expression of selections."""
    if isinstance(term, Both):
        return " & ".join(_operand(part) for part in term.parts)
    if isinstance(term, Not):
        return f"~{_operand(term.term)}"
    if isinstance(term, Union) and any(isinstance(part, Not) for part in term.included):
        return " | ".join(_operand(part) for part in term.included)
    if isinstance(term, Union):
        return f"select({', '.join(shown(part) for part in (*term.included, *map(Not, term.excluded)))})"
    return f"select({_leaf(term)})"


def _operand(term: Term) -> str:
    text = expressed(term)
    return f"({text})" if " & " in text or " | " in text else text


def _leaf(term: Leaf) -> str:
    if isinstance(term, Pattern):
        return repr(term.written)
    if isinstance(term, Regex):
        return repr(term.regex)
    return term.name if isinstance(term, OfClass) else f"<{term.title}>"
