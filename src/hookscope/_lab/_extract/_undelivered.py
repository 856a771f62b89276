"""Why a part of a selection has delivered nothing, in a sentence."""

from __future__ import annotations

from collections.abc import Iterable

from ..._core._match import View, bind
from ..._core._names import near
from ..._core._scope import Scope
from ..._core._site import Site
from ..._core._term import Term, shown
from ._hooks import Hooks
from ._key import Key
from ._wanted import UNWRITTEN, Wanted, undelivered

_SHOWN = 5


def complaints(wanted: Wanted, hooks: Hooks, keys: Iterable[Key]) -> list[str]:
    """One sentence for each part of the selection to which none of `keys` answers."""
    found = [(key.site, key.call) for key in keys]
    return [_reason(part, wanted, hooks) for part in undelivered(wanted, found)]


def _reason(part: Term, wanted: Wanted, hooks: Hooks) -> str:
    hit = bind(part, View(Scope(wanted.every), UNWRITTEN, leaves=False))
    meant = [site for site in wanted.sites if hit(site)]
    first = meant[0]
    if first.label:
        return f"{shown(part)} gave nothing: {_of_functions(meant, hooks)}"
    if first.kind == "param_grad":
        return f"{shown(part)} gave nothing: no backward has brought a gradient to it"
    ran = [site for site in meant if site.path in hooks.taps and _calls(site, hooks)]
    if not ran:
        return f"{shown(part)} gave nothing: {_never_ran(meant)}"
    return f"{shown(part)} gave nothing: {_ran(ran, hooks)}"


def _calls(site: Site, hooks: Hooks) -> int:
    tap = hooks.taps[site.path]
    return tap.entered if site.kind == "input" else tap.left


def _never_ran(meant: list[Site]) -> str:
    site = meant[0]
    owner, _, name = site.full_path.rpartition(".")
    return (
        f"{site.full_path!r} did not run as a module; either the forward does not reach it, or it is called as {name}.forward(...), which "
        f"passes by all hooks (then ask for the last function in it, such as '{owner or '(root)'}:output/tanh')"
    )


def _ran(ran: list[Site], hooks: Hooks) -> str:
    site = ran[0]
    calls = _calls(site, hooks)
    times = "once, as call 0" if calls == 1 else f"{calls} times, as calls 0 to {calls - 1}"
    if site.kind == "output_grad":
        return f"{site.full_path!r} ran {times}, and no gradient has come back to what it returned"
    return f"{site.full_path!r} ran {times}, and no tensor of that path or call was there"


def _of_functions(meant: list[Site], hooks: Hooks) -> str:
    paths = {site.path for site in meant}
    seen = dict.fromkeys(name for path, name in hooks.functions_seen if path in paths)
    if not seen:
        return f"no function was called in {meant[0].full_path!r} itself, outside the modules in it"
    if close := near(meant[0].label, seen):
        return f"did you mean {' or '.join(map(repr, close))}?"
    return (
        f"the functions called there are {', '.join(list(seen)[:_SHOWN])}{f' and {len(seen) - _SHOWN} more' if len(seen) > _SHOWN else ''}"
    )
