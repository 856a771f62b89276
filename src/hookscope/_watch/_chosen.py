"""What a selection means for one model: which modules to hook, and, later, which sites to keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .._core._select import Matcher, Selection, select_sites
from .._core._site import MODULE_KINDS, Kind, Site

_UNASKED: tuple[Kind, ...] = ("output", "output_grad", "param", "param_grad", "update")  # what a path without a kind has read at all times


@dataclass(frozen=True, slots=True)
class Chosen:
    """`modules` are the modules to hook, as (model, path); `inputs` those whose inputs were asked for by kind.

    Other inputs are read only where a forward enters the model, and where an output is not finite.
    """

    modules: frozenset[tuple[str, str]]
    inputs: frozenset[tuple[str, str]]
    _matcher: Matcher

    def keeps(self, site: Site) -> bool:
        """Whether a site that has turned up is recorded. The loss and scalars always are."""
        return site.kind in ("loss", "scalar") or self._matcher.matches(site)


def choose(selection: Selection, candidates: Sequence[Site], *, strict: bool) -> Chosen:
    """Resolve `selection`; if `strict`, raises `SelectionError` where it, or a part of it, matches nothing."""
    if strict:
        select_sites([*candidates, Site(-1, "loss", "loss")], selection, leaves=False)
    of_modules = [site for site in candidates if site.kind in MODULE_KINDS]
    matched, asked = (selection.among(candidates, kinds=kinds, leaves=False) for kinds in (None, _UNASKED))
    return Chosen(
        frozenset((site.model, site.path) for site in of_modules if matched.matches(site)),
        frozenset((site.model, site.path) for site in of_modules if site.kind == "input" and asked.matches(site)),
        selection.among(candidates),
    )
