"""What a selection means for one model: which modules to hook, and, later, which sites to keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .._core._select import Matcher, Selection, select_sites
from .._core._site import MODULE_KINDS, Kind, Site

_UNASKED: tuple[Kind, ...] = ("output", "output_grad", "param", "param_grad", "update")  # what a path without a kind has read at all times
MICRO = "micro"
LOCAL = "local"
# Sites that turn up, or not, while the training runs.
_LABELS: dict[Kind, tuple[str, ...]] = {"output": ("eval",), "output_grad": ("inner", "second"), "param_grad": ("preclip", MICRO, LOCAL)}


@dataclass(frozen=True, slots=True)
class Chosen:
    """`modules` are the modules to hook, as (model, path); `inputs` those whose inputs were asked for by kind, `micros` the parameters
    whose gradients were asked for by micro-batch.

    Other inputs are read only where a forward enters the model, and where an output is not finite.
    """

    modules: frozenset[tuple[str, str]]
    inputs: frozenset[tuple[str, str]]
    micros: frozenset[tuple[str, str]]
    _matcher: Matcher

    def keeps(self, site: Site) -> bool:
        """Whether a site that has turned up is recorded. The loss and scalars always are."""
        return site.kind in ("loss", "scalar") or self._matcher.matches(site)


def choose(selection: Selection, candidates: Sequence[Site], *, strict: bool) -> Chosen:
    """Resolve `selection`; if `strict`, raises `SelectionError` where it, or a part of it, matches nothing."""
    possible = [*candidates, *_labelled(candidates)]
    if strict:
        select_sites([*possible, Site(-1, "loss", "loss")], selection, leaves=False)
    of_modules = [site for site in possible if site.kind in MODULE_KINDS]
    # Without a kind of their own, the parts of a selection mean the kinds given here: `by_name` leaves those that name one.
    matched, asked, by_name = (selection.among(possible, kinds=kinds, leaves=False) for kinds in (None, _UNASKED, ("loss",)))
    return Chosen(
        frozenset((site.model, site.path) for site in of_modules if matched.matches(site)),
        frozenset((site.model, site.path) for site in of_modules if site.kind == "input" and asked.matches(site)),
        frozenset((site.model, site.path) for site in possible if site.label == MICRO and by_name.matches(site)),
        selection.among(possible),
    )


def _labelled(candidates: Sequence[Site]) -> Iterator[Site]:
    for site in candidates:
        for label in _LABELS.get(site.kind, ()):
            yield replace(site, label=label)
