"""An op: what is done to one tensor, and where; frozen, so that it can be shared, compared and pickled."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from typing_extensions import Self

from ..._core._errors import UsageError
from ..._core._site import Site
from ._where import Picked, Where, counted, picked

if TYPE_CHECKING:
    from ._place import Place

O = TypeVar("O", bound="Op")  # noqa: E741  # the op itself


@dataclass(frozen=True, repr=False)
class Op:
    """What an edit does to a tensor; `hookscope.zero()`, `hookscope.scale(0.5)` and the like make one.

    To write your own, derive a frozen dataclass and define `edited(value, place)`: it returns the new tensor, of the same shape, made by
    operations that autograd can follow, and never writes into `value`.

    >>> import hookscope as hs
    >>> hs.scale(0.5).at(units=[0, 3], calls=1)
    hs.scale(0.5).at(units=[0, 3], calls=1)
    """

    where: Where = field(default=Where(), kw_only=True)

    def at(  # noqa: PLR0913  # every way to narrow an op, in one place
        self,
        *,
        units: Picked | None = None,
        heads: Picked | None = None,
        positions: Picked | None = None,
        calls: Picked | None = None,
        steps: Picked | None = None,
        axis: int | None = None,
    ) -> Self:
        """The same op, acting on a part only. Each is a whole number, a slice, or several numbers; what is given twice replaces the first.

        `units` are channels behind convolutions, pooling and batch norms, entries of the last dimension behind linear layers, layer norms,
        embeddings and recurrent layers, rows of a parameter; elsewhere the second of four or more axes and the last of fewer. `axis` says
        it otherwise. `heads` are equal parts of the units, as wide as the module or one around it says (`head_dim`, `num_heads`);
        `positions` those of a sequence in tensors of three axes, -1 the last one. A position that a call does not have is passed over.
        `calls` are the module's calls within one forward of the model; `steps` the forwards of the model from the attaching on: in
        generation with a cache, 0 is the prompt and each further one a token.
        """
        named = {"units": units, "heads": heads, "positions": positions, "calls": calls, "steps": steps}
        given: dict[str, Any] = {name: index for name, one in named.items() if (index := picked(name, one)) is not None}
        given.update({name: counted(name, given[name]) for name in ("calls", "steps") if name in given})
        where = replace(self.where, **given) if axis is None else replace(self.where, **given, axis=axis)
        return replace(self, where=where)

    @property
    def timed(self) -> bool:
        """Whether the op has to know which call it is."""
        return self.where.timed

    def check(self, site: Site) -> None:
        """Raise what can be known to be wrong before anything has run."""

    def edited(self, value: torch.Tensor, place: Place) -> torch.Tensor:
        """The whole of `value` as it would be if the op acted everywhere."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it does: define edited(value, place)")

    def __repr__(self) -> str:
        given = ", ".join(_shown(getattr(self, f.name)) for f in fields(self) if f.name != "where" and getattr(self, f.name) != f.default)
        narrowed = f".at({self.where})" if str(self.where) else ""
        return f"hs.{_snake(type(self).__name__)}({given}){narrowed}"


def applied(op: Op, value: torch.Tensor, place: Place) -> torch.Tensor | None:
    """`value` with the op done to the part that it is meant for, in the dtype it had; None where it has no such part."""
    mask = op.where.mask(value, place)
    if mask is False:
        return None
    chosen = mask if isinstance(mask, torch.Tensor) else None
    new = op.edited(value, place if chosen is None else replace(place, mask=chosen))
    if not isinstance(new, torch.Tensor) or new.shape != value.shape:
        what = f"shape {tuple(new.shape)}" if isinstance(new, torch.Tensor) else f"a {type(new).__name__}"
        raise UsageError(f"{op!r} made {what} of {place.site.name}: give back a tensor of its shape, {tuple(value.shape)}")
    if new.is_floating_point() and not (value.is_floating_point() or value.is_complex()) and not bool((new == new.round()).all()):
        raise UsageError(
            f"{op!r} made fractions of {place.site.name}, which holds {str(value.dtype).removeprefix('torch.')} and would lose them: "
            "edit it where it is of floating-point numbers, or round it yourself with hs.replace(...)"
        )
    new = new.to(value.device, value.dtype)
    if chosen is None and (new.requires_grad or not value.requires_grad or not torch.is_grad_enabled()):
        return new
    # What has been replaced as a whole stays in the graph, with gradients of zero, as the parts of it do that are replaced.
    return torch.where(torch.ones((), dtype=torch.bool, device=value.device) if chosen is None else chosen, new, value)


def _shown(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"tensor{list(value.shape)}"
    if isinstance(value, tuple) and value and isinstance(value[0], torch.Tensor):
        return f"[{', '.join(map(_shown, value))}]"
    return getattr(value, "__name__", None) or (repr(value) if not hasattr(value, "keys") else f"<{type(value).__name__}>")


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
