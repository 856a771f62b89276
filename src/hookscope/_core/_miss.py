"""Why a part of a selection matches nothing, in a sentence that names what was meant or what there is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ._match import View, bind
from ._names import near
from ._path import ANY_DEPTH, Index, Path, expression, is_exact, subject, write
from ._pattern import Pattern
from ._site import Site
from ._term import Leaf, OfClass, Regex, shown

_SHOWN = 5


def alternatives(leaf: Leaf) -> Iterator[Leaf]:
    """The leaf, with the items of its indices one by one: in `h[0,3,50]` each must match."""
    if not isinstance(leaf, Pattern) or all(not isinstance(part, Index) or len(part.items) == 1 for part in leaf.path):
        yield leaf
        return
    for i, part in enumerate(leaf.path):
        for item in part.items if isinstance(part, Index) else ():
            path = (*leaf.path[:i], Index((item,)), *leaf.path[i + 1 :])
            yield replace(leaf, path=path, head=write(path))


def explain(leaf: Leaf, view: View) -> str:
    """The sentence; `view` is the one under which nothing matched."""
    kinds = f" of kind {' or '.join(view.kinds)}" if view.kinds is not None and not (isinstance(leaf, Pattern) and leaf.wants) else ""
    return f"no site{kinds} matches {shown(leaf)}: {_reason(leaf, view)}"


def _reason(leaf: Leaf, view: View) -> str:
    if not view.scope.sites:
        return "there are no sites"
    there = _matching(_anywhere(leaf), view)
    if there and (view.kinds is not None or isinstance(leaf, Pattern)):
        return f"there is only {_listed(repr(site.name) for site in there)}"
    if isinstance(leaf, Pattern):
        return _path_reason(leaf, view)
    if isinstance(leaf, OfClass):
        return _class_reason(leaf.name, view.scope.sites)
    paths = dict.fromkeys(site.full_path for site in view.scope.sites)
    if isinstance(leaf, Regex):
        return f"it is found in none of the paths {_listed(map(repr, paths))}"
    return f"it is true of none of the {len(view.scope.sites)} sites"


def _anywhere(leaf: Leaf) -> Leaf:
    """The leaf without kinds, labels and output paths; what asked for parameters also reaches below its path."""
    if not isinstance(leaf, Pattern):
        return leaf
    return replace(leaf, wants=(), path=(*leaf.path, ANY_DEPTH) if leaf.of_parameters else leaf.path)


def _matching(leaf: Leaf, view: View) -> list[Site]:
    hit = bind(leaf, view.of_all_kinds)
    return [site for site in view.scope.sites if hit(site)]


def _listed(items: Iterable[str]) -> str:
    listed = list(dict.fromkeys(items))
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


def _class_reason(name: str, sites: Sequence[Site]) -> str:
    known = dict.fromkeys(base for site in sites for base in site.bases)
    bare = {base.rsplit(".", 1)[-1]: base for base in reversed(known)}
    meant = [bare[b] for b in near(name.rsplit(".", 1)[-1], bare)] or [b for b in known if b.endswith("." + name.rsplit(".", 1)[-1])]
    if meant:
        return f"did you mean {' or '.join(meant)}?"
    classes = dict.fromkeys(site.bases[0] for site in sites if site.bases)
    return f"the modules are of class {_listed(classes)}" if classes else "no site belongs to a module"


def _path_reason(pattern: Pattern, view: View) -> str:
    path = view.scope.visible(pattern.path)
    names = dict.fromkeys(name for per_model in view.scope.names.values() for name in sorted(per_model))
    failing = next((i for i in range(len(path)) if not _any_below(path[: i + 1], names, view)), None)
    if failing is None:
        below = _matching(replace(pattern, path=(*path, ANY_DEPTH), wants=()), view)
        return f"nothing is there itself, but below it there is {_listed(repr(site.name) for site in below)}"
    part = path[failing]
    if isinstance(part, Index):
        return _index_reason(path[:failing], view)
    guesses = [(*path[:failing], guess, *path[failing + 1 :]) for guess in near(part, _children(path[:failing], names, view))]
    found = [write(guess) for guess in guesses if _matching(replace(pattern, path=guess, wants=()), view)]
    meant = (found or (near(write(path), names) if is_exact(path) else []))[:3]
    if meant:
        return f"did you mean {' or '.join(repr(name + pattern.tail) for name in meant)}?"
    return f"the paths are {_listed(repr(site.full_path) for site in view.scope.sites)}"


def _any_below(path: Path, names: Iterable[str], view: View) -> bool:
    """Whether some name lies at or under the path."""
    expressions = [re.compile(expression((*path, ANY_DEPTH), indices)) for indices in view.scope.indices.values()]
    return any(e.fullmatch(subject(name)) for e in expressions for name in names)


def _children(path: Path, names: Iterable[str], view: View) -> list[str]:
    """The next parts of the names under the path."""
    found: dict[str, None] = {}
    for indices in view.scope.indices.values():
        head = re.compile(rf"{expression(path, indices)}(?P<child>[^.]+)\.")
        found.update(dict.fromkeys(m["child"] for name in names if (m := head.match(subject(name)))))
    return list(found)


def _index_reason(path: Path, view: View) -> str:
    numbers = sorted({int(c) for c in _children(path, [n for p in view.scope.names.values() for n in p], view) if c.isdecimal()})
    if not numbers:
        return f"{write(path)!r} has no children that are named by whole numbers"
    whole = numbers == list(range(numbers[0], numbers[-1] + 1))
    shown_as = f"{numbers[0]} to {numbers[-1]}" if whole and len(numbers) > 1 else ", ".join(map(str, numbers))
    return f"{write(path)!r} has the children {shown_as}"
