"""The two sites behind an update ratio: a parameter and the change that one step made to it."""

from __future__ import annotations

from collections.abc import Iterable

from .._core._errors import UsageError
from .._core._site import PARAM_KINDS, Site

UPDATE_RATIO = "update_ratio"


def update_and_parameter(table: Iterable[Site], site: Site) -> tuple[Site, Site]:
    """The `update` and the `param` site of the parameter that a site speaks of; UsageError if it is none, or lacks one of the two."""
    if site.kind not in PARAM_KINDS:
        raise UsageError(f"{UPDATE_RATIO!r} is a quantity of parameters, and {site.name!r} is none: name one such as 'fc.weight'")
    of_it = {s.kind: s for s in table if (s.model, s.path) == (site.model, site.path) and not s.label}
    lacking = [kind for kind in ("update", "param") if kind not in of_it]
    if lacking:
        raise UsageError(
            f"no {UPDATE_RATIO!r} for {site.full_path!r}: this run recorded no {' and no '.join(lacking)} of it "
            "(it needs both: watch with the optimizer given, and select both kinds)"
        )
    return of_it["update"], of_it["param"]
