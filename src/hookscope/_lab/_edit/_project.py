"""Directions projected out of a value, or the value projected onto them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch

from ..._core._errors import UsageError
from ._op import Op
from ._operand import Number, tensor_of
from ._place import Place


@dataclass(frozen=True, repr=False, eq=False)
class Project(Op):
    """`hookscope.project`; `basis` is orthonormal, a direction a row, float64."""

    basis: torch.Tensor
    onto: bool = False

    def edited(self, value: torch.Tensor, place: Place) -> torch.Tensor:
        axis = place.unit_axis(value)
        if value.dim() == 0 or value.shape[axis] != self.basis.shape[1]:
            units = value.shape[axis] if value.dim() else 0
            raise UsageError(f"directions of {self.basis.shape[1]} numbers do not fit {place.site.name}, which has {units} units")
        if not value.is_floating_point():
            raise UsageError(f"{place.site.name} holds {value.dtype}, which cannot be projected: choose a site of floating-point numbers")
        kind = value.device.type
        # In the lower precision of autocast what is left of a direction would be large.
        with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
            wide = value.movedim(axis, -1).to(torch.promote_types(value.dtype, torch.float32))
            basis = self.basis.to(wide.device, wide.dtype)
            along = (wide @ basis.T) @ basis
            return (along if self.onto else wide - along).movedim(-1, axis)


def project(directions: Number, *, onto: bool = False) -> Op:
    """The value without what it has along `directions` (directional ablation); with `onto`, nothing but that.

    `directions` are vectors over the units, `(units,)` or `(directions, units)`, of any length and at any angle: the space they span is
    what counts, found by singular values. The gradient is projected likewise; none flows to the directions. Narrowed by `at(units=...)`,
    the other units keep their values. Raises `UsageError` for directions that are all zero or not finite, and in the forward where they
    do not fit.

    >>> import torch
    >>> import hookscope as hs
    >>> with hs.edit(torch.nn.Identity(), {"(root)": hs.project(torch.tensor([0.0, 2.0]))}) as e:
    ...     e.model(torch.tensor([[3.0, 4.0]]))
    tensor([[3., 0.]])
    """
    given = tensor_of(directions, "directions").detach()
    precision = torch.finfo(given.dtype if given.is_floating_point() else torch.float64).eps
    matrix = given.double().unsqueeze(0) if given.dim() == 1 else given.double()
    if matrix.dim() != 2 or not matrix.numel():
        raise UsageError(f"directions of shape {tuple(given.shape)}: give one vector over the units, or a matrix with one in each row")
    if not matrix.isfinite().all():
        raise UsageError("directions hold NaN or Inf: give finite vectors")
    _, sizes, rows = torch.linalg.svd(matrix, full_matrices=False)
    rank = int((sizes > sizes[0] * max(matrix.shape) * precision).sum())
    if rank == 0:
        raise UsageError("directions are all zero: they span nothing to project out")
    return Project(rows[:rank], onto)
