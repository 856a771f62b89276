"""Where a module stands: its ancestors, whether it has code of its own, and whether its arithmetic can make a NaN out of finite values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .._core._site import ROOT, Site

# torch's own modules that map moderate finite values to finite ones, forward and backward, whatever the values are.
SAFE_MODULES = re.compile(
    r"(Bil|L)inear|Conv(Transpose)?\dd|Embedding(Bag)?|Identity|(Unf|F)latten|(Adaptive)?(Max|Avg)Pool\dd|(Alpha)?Dropout\d?d?|"
    r"(Batch|Instance)Norm\dd|(Layer|Group|RMS)Norm|([PS]|Leaky)?(Re|E)LU6?|[CG]ELU|SiLU|Mish|(Log)?Sigmoid|Tanh|Hard\w+|Soft(plus|sign)"
)
# Containers without code of their own between their children.
PLAIN_CONTAINERS = re.compile("Sequential|ModuleList|ModuleDict")


def _is_torch(bases: Sequence[str], names: re.Pattern[str]) -> bool:
    return bool(bases) and bases[0].startswith("torch.nn.modules.") and names.fullmatch(bases[0].rsplit(".", 1)[-1]) is not None


def parent(path: str) -> str | None:
    """The path one level up; None above the model itself."""
    return path.rpartition(".")[0] if path else None


def inside(path: str, other: str) -> bool:
    """Whether `path` is `other` or lies inside it."""
    return not other or path == other or path.startswith(other + ".")


def enclosing(paths: Iterable[str]) -> str:
    """The smallest module that holds all of these."""
    split = [path.split(".") if path else [] for path in paths]
    shared: list[str] = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


@dataclass(frozen=True, slots=True)
class Place:
    """A module's path and its classes, most derived first."""

    model: str
    path: str
    bases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As `Site.full_module` writes it."""
        return ".".join(part for part in (self.model, self.path) if part) or ROOT

    @property
    def described(self) -> str:
        """`encoder.3 (Linear)`."""
        return f"{self.name} ({self.bases[0].rsplit('.', 1)[-1]})" if self.bases else self.name

    @property
    def safe(self) -> bool:
        """Whether finite values, unless they overflow, stay finite through it."""
        return _is_torch(self.bases, SAFE_MODULES)

    @property
    def plain(self) -> bool:
        """Whether it is a container without code between its children."""
        return _is_torch(self.bases, PLAIN_CONTAINERS)


@dataclass(frozen=True, slots=True)
class Places:
    """The modules of a run, by model and path."""

    known: dict[tuple[str, str], tuple[str, ...]]

    @classmethod
    def of(cls, sites: Iterable[Site]) -> Places:
        """Read off the table of sites."""
        return cls({(s.model, s.module): s.bases for s in sites if s.kind not in ("loss", "scalar")})

    def at(self, model: str, path: str) -> Place:
        """The module at a path."""
        return Place(model, path, self.known.get((model, path), ()))

    def own_code_around(self, consumer: Place, before: str | None = None) -> Place:
        """The module whose own code runs just before `consumer` is called.

        Plain containers are passed by. Where the tensor comes from `before`, its neighbour in one plain container, no code lies between
        them and `consumer` itself is returned.
        """
        up = parent(consumer.path)
        while up is not None:
            place = self.at(consumer.model, up)
            if place.bases and not place.plain:
                return place
            if place.plain and before is not None and inside(before, up):
                return consumer
            up = parent(up)
        return consumer if self.at(consumer.model, "").plain else self.at(consumer.model, "")
