"""A pattern of a dotted path, and the one regular expression it becomes.

`*` and `?` stay within a part of the path. A part `**` stands for zero or more whole parts; `**` beside other characters stands for any
characters, dots included. `[...]` picks children that are named by whole numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ._site import ROOT

Indices: TypeAlias = Mapping[str, Collection[int]]  # path of a parent -> the whole numbers that name its children
_TOKENS = re.compile(r"\*\*+|\*|\?|[^*?]+")
_WILD = {"*": "[^.]*", "?": "[^.]"}


@dataclass(frozen=True, slots=True)
class Span:
    """`3:6`, `-2:` or `::2` within an index, as in a Python slice."""

    start: int | None = None
    stop: int | None = None
    step: int | None = None

    def __str__(self) -> str:
        shown = ["" if n is None else str(n) for n in (self.start, self.stop, self.step)]
        return ":".join(shown if self.step is not None else shown[:2])


@dataclass(frozen=True, slots=True)
class Index:
    """`[3:6]` or `[0,3,-1]`: children of the part before, by number."""

    items: tuple[int | Span, ...]

    def chosen(self, existing: Collection[int]) -> set[int]:
        """Those that are picked. Numbers are names: `3:6` is the children named 3, 4 and 5; negative ones count back from the largest."""
        size = max(existing, default=-1) + 1
        picked: set[int] = set()
        for item in self.items:
            if isinstance(item, Span):
                picked.update(range(*slice(item.start, item.stop, item.step).indices(size)))
            else:
                picked.add(item + size if item < 0 else item)
        return picked & set(existing)

    def __str__(self) -> str:
        return f"[{','.join(map(str, self.items))}]"


Path: TypeAlias = tuple[str | Index, ...]
ANY_DEPTH = "**"


def subject(name: str) -> str:
    """A name as the expressions see it: every part ends in a dot, so that the root is the empty text and no part can be half matched."""
    return f"{name}." if name else ""


def write(path: Path) -> str:
    """The path as a user writes it.

    >>> write(("h", Index((Span(3, 6), -1)), "mlp"))
    'h[3:6,-1].mlp'
    """
    text = "".join(str(part) if isinstance(part, Index) else f".{part}" for part in path)
    return text.removeprefix(".") or ROOT


def is_exact(path: Path) -> bool:
    """Whether the path has neither wildcard nor index."""
    return not any(isinstance(part, Index) or "*" in part or "?" in part for part in path)


def expression(path: Path, indices: Indices) -> str:
    """The regular expression of a path over `subject(name)`; indices are resolved against the children that exist."""
    last = max((i for i, part in enumerate(path) if isinstance(part, Index)), default=-1)
    tail = "".join(_part(part) for part in path[last + 1 :] if isinstance(part, str))
    index = path[last] if last >= 0 else None
    return _children(index, path[:last], indices) + tail if isinstance(index, Index) else tail


def _children(index: Index, parents: Path, indices: Indices) -> str:
    """Every parent that matches, each with its own children: -1 is another number under each."""
    matches = re.compile(expression(parents, indices)).fullmatch
    heads = [
        f"{re.escape(subject(parent))}(?:{'|'.join(map(str, sorted(picked)))})"
        for parent, existing in indices.items()
        if matches(subject(parent)) and (picked := index.chosen(existing))
    ]
    return rf"(?:{'|'.join(heads)})\." if heads else "(?!)"


def _part(part: str) -> str:
    if len(part) > 1 and not part.strip("*"):
        return r"(?:[^.]+\.)*"
    return "".join(_WILD.get(t) or ("(?s:.*)" if t[0] == "*" else re.escape(t)) for t in _TOKENS.findall(part)) + r"\."
