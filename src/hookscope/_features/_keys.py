"""Which entry a key means: `layer3`, `layer3:input`, `block@1`, or a site and a call."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .._core._errors import SelectionError
from .._core._select import parse_key, select_sites
from .._core._site import Site
from ._entry import Entry


def meant(key: Any, entries: Mapping[str, Entry]) -> str:
    """The name of the one entry that is meant; SelectionError, with near misses, where none or several are."""
    if isinstance(key, str) and key in entries:
        return key
    asked, call = key if isinstance(key, tuple) and len(key) == 2 else (getattr(key, "site", key), getattr(key, "call", None))
    if isinstance(asked, Site):
        asked = asked.name
    if not isinstance(asked, str) or not (call is None or isinstance(call, int)):
        raise SelectionError(f"{key!r} is no key: write a site, features['layer3'], or a site and a call, features['layer3', 1]")
    parsed = parse_key(asked)
    site = _one_site(asked, [entry.site for entry in entries.values()])
    return _one_call(
        site, {entry.call: name for name, entry in entries.items() if entry.site.name == site.name}, parsed.call if call is None else call
    )


def _one_site(asked: str, sites: list[Site]) -> Site:
    distinct = list({site.name: site for site in sites}.values())
    selection = parse_key(asked).selection
    found: list[Site] = []
    with suppress(SelectionError):  # an output is meant where no kind is written and there is one
        found = select_sites(distinct, selection, kinds=("output",))
    found = found or select_sites(distinct, selection)
    if len(found) > 1 and "/" not in asked:  # without a label in the words, none is meant
        found = [site for site in found if not site.label] or found
    if len(found) > 1:
        names = ", ".join(repr(site.name) for site in found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        raise SelectionError(f"{asked!r} means {len(found)} sites: write one of {names}")
    return found[0]


def _one_call(site: Site, calls: Mapping[int, str], call: int | None) -> str:
    if call is None and len(calls) == 1:
        return next(iter(calls.values()))
    if call is not None and call in calls:
        return calls[call]
    shown = ", ".join(map(repr, list(calls.values())[:5])) + (", ..." if len(calls) > 5 else "")
    times = "once" if len(calls) == 1 else f"{len(calls)} times"
    raise SelectionError(f"{site.name} is there {times}{'' if call is None else f', not for call {call}'}: write {shown}")
