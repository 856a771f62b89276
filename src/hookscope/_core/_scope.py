"""The names that exist among some sites: what a selection is resolved against, and what a misspelt one is compared with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ._path import Indices, Path
from ._site import PARAM_KINDS, Site


def names_of(site: Site) -> list[str]:
    """Every name that finds the site: its path, its aliases, for a parameter its owners; each with and without the model's name."""
    names = [site.path, *site.aliases] if site.aliases else [site.path]
    if site.kind in PARAM_KINDS:
        names.append(site.module)
        names += [alias.rpartition(".")[0] for alias in site.aliases]
    if site.model:
        names += [f"{site.model}.{name}" if name else site.model for name in names]
    return names


@dataclass(frozen=True)
class Scope:
    """Sites, and their names by model; whatever costs a pass over all of them is done when it is first needed, once."""

    sites: Sequence[Site]

    @cached_property
    def names(self) -> Mapping[str, frozenset[str]]:
        """model -> every name that finds a site of it."""
        found: dict[str, set[str]] = {}
        for site in self.sites:
            found.setdefault(site.model, set()).update(names_of(site))
        return {model: frozenset(names) for model, names in found.items()}

    @cached_property
    def indices(self) -> Mapping[str, Indices]:
        """model -> path -> the whole numbers that name children of that path."""
        return {model: _indices(names) for model, names in self.names.items()}

    def visible(self, path: Path) -> Path:
        """The path without the `module` that DDP puts in front, unless a model has a child of that name itself."""
        model = next((model for model in self.names if model and path[:1] == (model,)), "")
        head, rest = (path[:1], path[1:]) if model else ((), path)
        while rest[:1] == ("module",) and not self._has(f"{model}.module" if model else "module"):
            rest = rest[1:]
        return (*head, *rest)

    def _has(self, name: str) -> bool:
        return any(known == name or known.startswith(f"{name}.") for names in self.names.values() for known in names)


def _indices(names: Collection[str]) -> Indices:
    found: dict[str, set[int]] = {}
    for name in names:
        parts = name.split(".")
        for i, part in enumerate(parts):
            if part.isdecimal() and part.isascii() and part == str(int(part)):
                found.setdefault(".".join(parts[:i]), set()).add(int(part))
    return found
