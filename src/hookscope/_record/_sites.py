"""The sites of a run as a sequence that is asked in the selection language."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, overload

from .._core._errors import SelectionError
from .._core._select import parse_key, select_sites
from .._core._site import Kind, Site

# Without a kind in the words, an activation or a scalar is meant, else a parameter, else both, and if there is none, whatever there is.
_MEANT: tuple[tuple[Kind, ...], ...] = (
    ("output", "loss", "scalar"),
    ("param", "loss", "scalar"),
    ("output", "param", "loss", "scalar"),
)


class Sites(Sequence[Site]):
    """All sites of a run, ordered by id.

    >>> Sites([Site(0, "fc", "output"), Site(1, "fc.weight", "param", module="fc")]).select("fc:output")[0].name
    'fc:output'
    """

    def __init__(self, table: Sequence[Site]) -> None:
        self._table = tuple(table)
        self._by_name = {site.name: site for site in self._table}

    def select(self, selection: Any) -> list[Site]:
        """The sites that a selection names, of every kind if it names none; SelectionError if there is none."""
        return select_sites(self._table, selection)

    def meant(self, selection: Any, *, kinds: tuple[Kind, ...] | None = None) -> list[Site]:
        """Like `select`, but where the selection names no kind: `kinds`, or else outputs and scalars, or else parameters."""
        for attempt in (kinds,) if kinds else _MEANT:
            with contextlib.suppress(SelectionError):
                return select_sites(self._table, selection, kinds=attempt)
        return select_sites(self._table, selection)  # once more, for the error with its near misses

    def one(self, key: str | Site, *, kinds: tuple[Kind, ...] | None = None) -> tuple[Site, int | None]:
        """The one site that a key names, and the call that it singles out (None: all calls)."""
        if isinstance(key, Site):
            return key, None
        if key in self._by_name and kinds is None:
            return self._by_name[key], None
        parsed = parse_key(key)
        found = self.meant(parsed.selection, kinds=kinds)
        if len(found) > 1 and "/" not in key:  # without a label in the words, none is meant
            found = [site for site in found if not site.label] or found
        if len(found) > 1:
            names = ", ".join(repr(s.name) for s in found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
            raise SelectionError(f"{key!r} names {len(found)} sites, not one: {names}; for all of them use run.series({key!r}, quantity)")
        return found[0], parsed.call

    @overload
    def __getitem__(self, index: int) -> Site: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Site]: ...
    def __getitem__(self, index: int | slice) -> Site | Sequence[Site]:
        return self._table[index]

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Site]:
        return iter(self._table)

    def __repr__(self) -> str:
        return f"<{len(self)} sites>"
