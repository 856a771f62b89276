"""One site among the features on disk: what its samples look like and in which file they lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .._core._site import Site
from ._batch import Piece

_SITE = ("path", "kind", "label", "output_path", "model", "module")
_UNSAFE = str.maketrans(dict.fromkeys('/\\:*?"<>|\0', "_"))


@dataclass(frozen=True, slots=True)
class Entry:
    """`shape` is that of one sample; of sequences of different lengths (`ragged`) its first number is the length of the first one seen.

    `stem` is the name of its file, or folder of shards, without ending.
    """

    site: Site
    call: int
    dtype: str
    shape: tuple[int, ...]
    stem: str

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from the other entries."""
        return self.site.name, self.call

    def to_json(self) -> dict[str, Any]:
        """As the manifest has it."""
        named = {name: getattr(self.site, name) for name in _SITE if getattr(self.site, name)}
        bases = {"bases": list(self.site.bases)} if self.site.bases else {}
        return {**named, **bases, "call": self.call, "dtype": self.dtype, "shape": list(self.shape), "file": self.stem}


def entry_from_json(number: int, found: Mapping[str, Any]) -> Entry:
    """The entry that the manifest tells of; KeyError or TypeError if it does not."""
    named = {name: str(found[name]) for name in _SITE if name in found}
    site = Site(id=number, path=named.pop("path", ""), bases=tuple(found.get("bases", ())), **named)  # type: ignore[arg-type]  # JSON's word for the kind
    return Entry(site, int(found["call"]), str(found["dtype"]), tuple(map(int, found["shape"])), str(found["file"]))


def entries(pieces: Iterable[Piece]) -> tuple[Entry, ...]:
    """The entries of the first batch, in order of execution, each with a file of its own."""
    found: list[Entry] = []
    taken = {"ids", "index"}
    pieces = tuple(pieces)
    reused = {piece.site.name for piece in pieces if piece.call}
    for number, piece in enumerate(pieces):
        shape = piece.values.shape[1:] if piece.lengths is None else (0, *piece.values.shape[1:])
        stem = _free(_stem(piece, call=piece.site.name in reused), taken)
        taken.add(stem.casefold())
        found.append(Entry(_numbered(piece.site, number), piece.call, piece.dtype, shape, stem))
    return tuple(found)


def _numbered(site: Site, number: int) -> Site:
    named: dict[str, Any] = {name: getattr(site, name) for name in _SITE}
    return Site(id=number, bases=site.bases, **named)


def _stem(piece: Piece, *, call: bool) -> str:
    """`layer3` for an output, `layer3.input` for another kind, `layer3@1` for the second of several calls."""
    site = piece.site
    kind = "" if site.kind == "output" and not site.label else f".{site.kind}{'.' + site.label if site.label else ''}"
    return f"{site.full_path}{'@' + str(piece.call) if call else ''}{kind}{site.output_path}".translate(_UNSAFE)[:200]


def _free(stem: str, taken: set[str]) -> str:
    """The stem, numbered where a file system that ignores case would take it for another."""
    number, free = 1, stem
    while free.casefold() in taken:
        number += 1
        free = f"{stem}~{number}"
    return free
