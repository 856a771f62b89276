"""Where in a forward the first non-finite value was made: in a module, or in code between two modules."""

from __future__ import annotations

from dataclasses import dataclass

from ._births import Birth
from ._places import Place, Places, parent
from ._step import Row


@dataclass(frozen=True, slots=True)
class Origin:
    """The module that made it, the row that shows it, what went in there, and whether it was made before the module `row` was called."""

    place: Place
    row: Row
    between: bool = False
    inputs: tuple[Row, ...] = ()
    begun: bool = True  # whether anything that ran before it was read

    @property
    def fed(self) -> str:
        """How large the finite input was, in words."""
        sizes = [max(abs(r.stats.min), abs(r.stats.max)) for r in self.inputs if r.stats.min <= r.stats.max and not r.nonfinite]
        if sizes:
            return f" while its input is finite (largest magnitude {max(sizes):.3g})"
        return " while everything before it is finite" if self.begun else ""


def forward_origin(birth: Birth, micro: int, places: Places) -> Origin | None:
    """The first bad output in the order of execution whose inputs are clean; None where the forward is clean or the batch is not."""
    bad = birth.bad("output", micro)
    if not bad:
        return _masked_result(birth, micro, places)
    if birth.spoiled(micro):
        return None
    first = bad[0]
    place, inputs = _place(first, places), _inputs(birth, first)
    masked = [r for r in birth.rows.of("output", micro) if r.masked and r.seq < first.seq]
    if any(r.bad for r in inputs):
        return Origin(places.own_code_around(_outermost(birth, first, places)), first, between=True)
    if place.safe and masked and (not inputs or any(r.masked for r in inputs)):
        return Origin(_place(masked[-1], places), masked[-1])
    if place.safe and any(r.masked for r in inputs):
        return Origin(places.own_code_around(place), first, between=True)
    begun = any(r.seq < first.seq for r in birth.rows.of("output", micro))
    return Origin(place, first, inputs=tuple(inputs), begun=begun)


def _place(row: Row, places: Places) -> Place:
    return places.at(row.site.model, row.site.module)


def _inputs(birth: Birth, row: Row, path: str | None = None) -> list[Row]:
    at = row.site.module if path is None else path
    found = [r for r in birth.rows.of("input", row.micro) if r.site.module == at and r.site.model == row.site.model]
    return [r for r in found if r.call == row.call] or found


def _outermost(birth: Birth, first: Row, places: Places) -> Place:
    """Climb from the consumer while the enclosing module was itself called with bad values."""
    place = _place(first, places)
    up = parent(place.path)
    while up and any(r.bad for r in _inputs(birth, first, up)):
        place = places.at(place.model, up)
        up = parent(up)
    return place


def _masked_result(birth: Birth, micro: int, places: Places) -> Origin | None:
    """A loss that is Inf, never NaN, on a model output with -inf: the loss picked one of them, so whoever made it is the origin."""
    losses, outputs = birth.rows.of("loss", micro), birth.rows.of("output", micro)
    picked = any(r.stats.inf for r in losses) and not any(r.stats.nan for r in losses)
    if not picked or not outputs or not outputs[-1].masked:
        return None
    first = outputs[-1]
    for row in reversed(outputs):
        if not row.masked:
            break
        first = row
    return Origin(_place(first, places), first)
