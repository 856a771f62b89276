"""Which module of one model is which of the other: pairs, and the map in which a user writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..._core._errors import UsageError
from ..._core._names import near
from ..._core._site import ROOT

Paths = tuple[str, ...]
Map: TypeAlias = "Mapping[str | tuple[str, ...], str | tuple[str, ...] | list[str] | None]"


@dataclass(frozen=True, slots=True)
class Pair:
    """One module against one, or one against several that together do its work: their outputs are joined along the last axis."""

    a: Paths
    b: Paths
    how: str = "name"


@dataclass(slots=True)
class Pairs:
    """Pairs so far, and what is left out on purpose."""

    found: dict[Paths, Pair] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)

    @property
    def used_a(self) -> set[str]:
        return {path for pair in self.found.values() for path in pair.a} | self.skipped

    @property
    def used_b(self) -> set[str]:
        return {path for pair in self.found.values() for path in pair.b}

    @property
    def single(self) -> dict[str, str]:
        """a's path -> b's, where it is one to one."""
        return {pair.a[0]: pair.b[0] for pair in self.found.values() if len(pair.a) == len(pair.b) == 1}

    def add(self, a: Paths, b: Paths, how: str) -> None:
        """Pair them, unless one of them has a partner already."""
        if not self.used_a.intersection(a) and not self.used_b.intersection(b):
            self.found[a] = Pair(a, b, how)

    def as_map(self) -> dict[str | Paths, str | Paths]:
        """As a user would write it, to be read, changed, and passed back."""
        return {_written(pair.a): _written(pair.b) for pair in self.found.values()}


def _written(paths: Paths) -> str | Paths:
    names = tuple(path or ROOT for path in paths)
    return names[0] if len(names) == 1 else names


def given(wanted: Map, a: Sequence[str], b: Sequence[str]) -> Pairs:
    """The pairs that a user's map names; UsageError for a name that is in neither model, with near misses.

    A key stands for the module and for all below it, `*` for one part of a path, the same on both sides. None leaves a's module out.
    """
    pairs = Pairs()
    for key, value in wanted.items():
        keys = _paths(key)
        if value is None:
            pairs.skipped.update(path for one in keys for path in _below(one, a, "a"))
            continue
        values = _paths(value)
        if len(keys) == len(values) == 1:
            _rename(pairs, (keys[0], values[0]), a, b)
        else:
            _group(pairs, (keys, values), a, b)
    return pairs


def _paths(written: str | Sequence[str]) -> Paths:
    names = (written,) if isinstance(written, str) else tuple(written) if isinstance(written, (tuple, list)) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise UsageError(f"map holds {written!r}: pass a module's path, a tuple of paths that together do its work, or None")
    return tuple("" if name == ROOT else name for name in names)


def _expression(path: str) -> re.Pattern[str]:
    return re.compile(re.escape(path).replace(r"\*", r"([^.]+)"))


def _below(path: str, known: Iterable[str], side: str) -> list[str]:
    expression = re.compile(_expression(path).pattern + r"(\..*)?" if path else "")
    found = [name for name in known if expression.fullmatch(name)]
    if not found:
        hint = near(path, known)
        more = f": did you mean {' or '.join(map(repr, hint))}?" if hint else f": its modules are {', '.join(map(repr, list(known)[:6]))}"
        raise UsageError(f"map names {path!r}, which is no module of model_{side}{more}")
    return found


def _filled(path: str, parts: Sequence[str]) -> str:
    for part in parts:
        path = path.replace("*", part, 1)
    return path


def _rename(pairs: Pairs, names: tuple[str, str], a: Sequence[str], b: Sequence[str]) -> None:
    """The module and all below it that have the same name on the other side."""
    head, other = names
    known = frozenset(b)
    _below(other, b, "b")
    for path in _below(head, a, "a"):
        match = re.match(_expression(head).pattern + r"(?=\.|$)" if head else "", path)
        if match is not None:
            tail = path[match.end() :] if head else ("." + path if path else "")
            there = (_filled(other, match.groups()) + tail).lstrip(".") if head or not path else (other + tail).lstrip(".")
            if there in known:
                pairs.add((path,), (there,), "map")


def _group(pairs: Pairs, names: tuple[Paths, Paths], a: Sequence[str], b: Sequence[str]) -> None:
    """Several modules against one, for every filling of their `*`."""
    first, expression = names[0][0], _expression(names[0][0])
    for name, known, side in [(n, a, "a") for n in names[0]] + [(n, b, "b") for n in names[1]]:
        _below(name, known, side)
    for path in _below(first, a, "a"):
        match = expression.fullmatch(path)
        if match is not None:
            left, right = (tuple(_filled(name, match.groups()) for name in side) for side in names)
            if set(left) <= set(a) and set(right) <= set(b):
                pairs.add(left, right, "map")
