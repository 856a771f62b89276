"""Where in a backward the first non-finite gradient was made."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from ._births import Birth
from ._places import Place, Places, inside
from ._step import Row

Kind = Literal["loss", "module", "own-code", "use-of-weight", "uncalled", "unknown"]
MODERATE = 1e4  # a gradient below this cannot overflow float32 in one of torch's own layers


@dataclass(frozen=True, slots=True)
class BackwardOrigin:
    """What made it, the row that shows it, and how sure that is."""

    kind: Kind
    row: Row
    place: Place
    confidence: float = 0.95


def backward_origin(birth: Birth, places: Places) -> BackwardOrigin | None:
    """The last module, in the order of execution, whose output gradient is clean while what it sends on is not."""
    every = birth.rows.parameter_gradients()
    parameters = [r for r in every if r.nonfinite]
    spread = len(every) > 1 and len(parameters) == len(every)
    for micro in birth.rows.micros:
        grads = birth.rows.of("output_grad", micro)
        bad = [r for r in grads if r.nonfinite]
        if not bad:
            continue
        last = max(bad, key=lambda r: r.seq)
        later = [r for r in grads if r.seq > last.seq and r.site.model == last.site.model]
        return (None if spread else _owner(parameters, later, places)) or _passed_on(last, later, places)
    if not parameters:
        return None
    clean = birth.rows.of("output_grad")
    return (_one_of_all if spread else _owner)(parameters, clean, places) or _uncalled(parameters[0], clean, places)


def _passed_on(last: Row, later: list[Row], places: Places) -> BackwardOrigin:
    """Between `last`, whose gradient is bad, and what was executed after it, whose gradients are clean."""
    here = places.at(last.site.model, last.site.module)
    if not later or last.site.module == "":
        return BackwardOrigin("loss", last, here)
    after = min(later, key=lambda r: r.seq)
    place = places.at(after.site.model, after.site.module)
    if inside(last.site.module, place.path):
        return BackwardOrigin("own-code", last, place)
    if place.safe and _moderate([after]):
        around = places.own_code_around(place, before=last.site.module)
        return BackwardOrigin("module" if around == place else "own-code", last, around, confidence=0.8)
    return BackwardOrigin("module", last, place, confidence=0.85)


def _owner(parameters: list[Row], clean: list[Row], places: Places) -> BackwardOrigin | None:
    """The last executed module whose output gradient is clean and whose own parameter's gradient is not."""
    order = {(r.site.model, r.site.module): r.seq for r in clean}
    suspects = [r for r in parameters if (r.site.model, r.site.module) in order]
    if not suspects:
        return None
    guilty = [r for r in suspects if not _innocent(r, clean, places)]
    row = max(guilty or suspects, key=lambda r: order[r.site.model, r.site.module])
    kind: Kind = "module" if guilty else "use-of-weight"
    return BackwardOrigin(kind, row, places.at(row.site.model, row.site.module), 0.95 if guilty else 0.6)


def _one_of_all(parameters: list[Row], clean: list[Row], places: Places) -> BackwardOrigin | None:
    """Clipping by a NaN norm makes every gradient NaN, which accuses everybody: suspect a module that can make one."""
    origin = _owner(parameters, clean, places)
    return replace(origin, kind="module", confidence=0.5) if origin else None


def _uncalled(row: Row, clean: list[Row], places: Places) -> BackwardOrigin:
    """No gradient of what the parameter's owner returned was read: its weight is used from elsewhere, or only parameters were looked at."""
    return BackwardOrigin("uncalled" if clean else "unknown", row, places.at(row.site.model, row.site.module), confidence=0.5)


def _innocent(row: Row, clean: list[Row], places: Places) -> bool:
    """A plain layer of torch's own under a moderate gradient: the NaN entered through another use of its weight."""
    own = [r for r in clean if (r.site.model, r.site.module) == (row.site.model, row.site.module)]
    known = row.site.path.rpartition(".")[2] in ("weight", "bias")
    return known and places.at(row.site.model, row.site.module).safe and _moderate(own)


def _moderate(rows: Iterable[Row]) -> bool:
    return all(r.site.dtype.removeprefix("torch.") != "float16" and _size(r) < MODERATE for r in rows)


def _size(row: Row) -> float:
    return max(abs(row.stats.min), abs(row.stats.max)) if row.stats.min <= row.stats.max else math.inf
