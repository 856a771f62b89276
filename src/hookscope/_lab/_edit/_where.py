"""Where within a site, and when, an op acts: units, heads, positions, calls, steps."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ..._core._errors import UsageError
from ..._core._path import Index, Span

if TYPE_CHECKING:
    from ._place import Place

Picked: TypeAlias = int | slice | Iterable[int]


_masks: dict[Any, torch.Tensor | bool] = {}  # those made last: to make one takes longer than to use it
_MOST_MASKS = 64


@dataclass(frozen=True, slots=True)
class Where:
    """Plain data; None means everywhere. `axis` says where the units lie, None that the module's class tells it."""

    units: Index | None = None
    heads: Index | None = None
    positions: Index | None = None
    calls: Index | None = None
    steps: Index | None = None
    axis: int | None = None

    @property
    def timed(self) -> bool:
        """Whether one has to know which call it is."""
        return self.calls is not None or self.steps is not None

    def acts(self, *, call: int, step: int) -> bool:
        """Whether this call of this step is meant."""
        return _holds(self.calls, call) and _holds(self.steps, step)

    def mask(self, value: torch.Tensor, place: Place) -> torch.Tensor | bool:
        """True where the op acts, broadcastable to `value`; plain True for everywhere, plain False where nothing of it is there."""
        if self.positions is None and self.units is None and self.heads is None:
            return True
        key = self, place.layout, place.axis, place.site.kind, value.shape, value.device
        mask = _masks.get(key)
        if mask is None:
            with torch.inference_mode(False):  # what is made inside inference mode could never be saved for a backward
                mask = self._mask(value, place)
            if not torch._C._len_torch_dispatch_stack() and torch._C._functorch.maybe_current_level() is None:  # no tensor of a mode's own
                if len(_masks) == _MOST_MASKS:
                    _masks.clear()
                _masks[key] = mask
        return mask

    def _mask(self, value: torch.Tensor, place: Place) -> torch.Tensor | bool:
        masks = []
        if self.positions is not None:
            axis = place.position_axis(value)
            masks.append(_along(axis, self.positions.chosen(range(value.shape[axis])), value))
        if self.units is not None or self.heads is not None:
            axis = place.unit_axis(value)
            masks.append(_along(axis, self._units(value.shape[axis], place), value))
        found = [mask for mask in masks if mask is not None]
        return False if len(found) < len(masks) else found[0] if len(found) == 1 else found[0] & found[1]

    def _units(self, size: int, place: Place) -> set[int]:
        picked = set(range(size))
        if self.units is not None:
            picked &= within(self.units, size, "unit", place.site.name)
        if self.heads is not None:
            width = place.head_size(size)
            heads = within(self.heads, size // width, "head", place.site.name)
            picked &= {head * width + i for head in heads for i in range(width)}
        return picked

    def __str__(self) -> str:
        given = [(name, getattr(self, name)) for name in self.__slots__]
        return ", ".join(f"{name}={_shown(value)}" for name, value in given if value is not None)


def picked(name: str, given: Picked | None) -> Index | None:
    """What a user has given as `units=` and the like: one number, a slice, or several numbers."""
    if given is None:
        return None
    try:
        items = [given] if isinstance(given, int | slice) else list(given)
        if any(is_truth(one) for one in items):
            raise UsageError(f"{name}= was given truth values: give the numbers of what is meant, such as mask.nonzero().flatten()")
        index = Index(tuple(map(_item, items)))
    except TypeError:
        raise UsageError(f"{name}={given!r} picks nothing: give a whole number, a slice or several whole numbers") from None
    if not index.items:
        raise UsageError(f"{name}={given!r} picks nothing: leave it out to mean all")
    return index


def counted(name: str, index: Index) -> Index:
    """The same, where it picks among what has no end yet: calls and steps."""
    for item in index.items:
        parts = [item] if isinstance(item, int) else [part for part in (item.start, item.stop, item.step) if part is not None]
        if min(parts, default=0) < 0:
            raise UsageError(f"{name}={_shown(index)}: {name} are counted from 0, since nobody knows yet how many there will be")
    return index


def _item(one: object) -> int | Span:
    if isinstance(one, slice):
        return Span(*(None if part is None else operator.index(part) for part in (one.start, one.stop, one.step)))
    return operator.index(one)  # type: ignore[arg-type]  # raises TypeError for what is no number


def is_truth(one: object) -> bool:
    """Whether it is a truth value of Python, numpy or torch, which would pass for 0 or 1."""
    return isinstance(one, bool) or str(getattr(one, "dtype", "")).removeprefix("torch.") == "bool"


def _holds(index: Index | None, number: int) -> bool:
    return index is None or any(item == number if isinstance(item, int) else number in _counted(item, number) for item in index.items)


def _counted(span: Span, number: int) -> range:
    return range(span.start or 0, number + 1 if span.stop is None else span.stop, span.step or 1)


def within(index: Index, size: int, what: str, site: str) -> set[int]:
    """Those that are picked of `size`. Raises `UsageError` for a number that is not among them; slices may reach beyond."""
    wrong = [item for item in index.items if isinstance(item, int) and not -size <= item < size]
    if wrong:
        raise UsageError(f"{site} has no {what} {wrong[0]}: there are {size}, numbered from 0 to {size - 1}")
    return index.chosen(range(size))


def _along(axis: int, picked: set[int], value: torch.Tensor) -> torch.Tensor | None:
    if not picked:
        return None
    mask = torch.zeros(value.shape[axis], dtype=torch.bool, device="cpu")
    mask[sorted(picked)] = True
    shape = [1] * value.dim()
    shape[axis] = -1
    return mask.view(shape).to(value.device)


def _shown(value: Index | int) -> str:
    if isinstance(value, int):
        return str(value)
    items = [f"slice({i.start}, {i.stop}, {i.step})" if isinstance(i, Span) else str(i) for i in value.items]
    return items[0] if len(items) == 1 else f"[{', '.join(items)}]"
