"""Adds up what `UnitStats` holds, tensor by tensor, in memory that does not grow.

Powers are summed of the differences from a shift, a mean of a few values to begin with, moved to the mean of all that was seen where
that has come to lie far from it: then no digits are lost, and a batch costs one pass. On the CPU float32 is read by the kernel in
`_units_native.c`, everything else by torch operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch

from ._backend import load
from ._unit_stats import RANGES, UnitStats

N, NONFINITE, S1, S2, S3, S4, ABS, MIN, MAX, POSITIVE, ZERO, LARGE, ROWS = range(13)
TINY = (2.0**-126, 2.0**-14, 2.0**-6)
OVER = (448.0, 57344.0, 65504.0, float(torch.finfo(torch.bfloat16).max))
_NARROW = (torch.float32, torch.float16, torch.bfloat16)
FEW = 64
FAR = 0.25  # standard deviations between shift and mean: the fourth power then loses no digit that counts
_EXTREMES = torch.tensor([[torch.inf], [-torch.inf]], dtype=torch.float64)
CHUNK = 1 << 20  # elements whose float64 copies the torch path holds at a time


UNIT_KERNEL = load("_units_native")


class Form(NamedTuple):
    """What adds a tensor like an earlier one, and how many numbers such a one has."""

    add: Callable[[torch.Tensor], float | None]
    numel: int


class Units:
    """The units of one place; `add` tensors, then ask for `stats`.

    >>> units = Units(2, torch.device("cpu"))
    >>> units.add(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), 1)
    3.0
    >>> units.stats().mean.tolist(), units.stats().zero.tolist()
    ([2.0, 0.0], [0.0, 2.0])
    """

    def __init__(self, units: int, device: torch.device) -> None:
        self.units = units
        # A device without float64 (MPS) is read where there is one.
        self.device = device if device.type in ("cpu", "cuda", "xpu") else torch.device("cpu")
        held = torch.zeros((ROWS + 1) * units + len(RANGES), dtype=torch.float64, device=self.device)
        self._rows, self._shift, self._ranges = held[: ROWS * units].view(ROWS, units), held[-units - 7 : -7], held[-7:]
        self._rows[MIN : MAX + 1] = _EXTREMES if self.device.type == "cpu" else _EXTREMES.to(self.device)
        start = held.data_ptr()
        self._pointers = start + ROWS * units * 8, start, start + (ROWS + 1) * units * 8
        self._natively = UNIT_KERNEL is not None and self.device.type == "cpu"
        self._read = self._due = 0

    def add(self, values: torch.Tensor, axis: int) -> float:
        """Add a floating-point tensor whose units are along `axis`; returns the largest finite magnitude in it (0 for none)."""
        if not values.numel():
            return 0.0
        values = values.detach().to(self.device).resolve_neg()
        if self._natively and values.dtype in _NARROW:
            x, axis = values.float(), axis % max(values.dim(), 1)
            if not x.is_contiguous():
                x, axis = in_memory_order(x, axis)
            return self._add_at(x.data_ptr(), *sizes(x, axis))
        if self._read == 0:
            self._begin(laid_out(values, axis))
        most = self._add_plainly(laid_out(values, axis))
        self._count(values.numel())
        return most

    def form_of(self, tensor: torch.Tensor, axis: int) -> Form | None:
        """What adds tensors of the form of this one, quickly; None where it has gaps or is not of float32 in the memory of this process."""
        if not self._natively or not is_bare(tensor):
            return None
        ordered, axis = in_memory_order(tensor, axis)
        if ordered.data_ptr() != tensor.data_ptr():
            return None
        assert UNIT_KERNEL is not None
        outer, inner = sizes(ordered, axis)
        return Form(UNIT_KERNEL.form(tensor, outer, self.units, inner, *self._pointers).add, tensor.numel())

    def add_like(self, tensor: torch.Tensor, form: Form) -> float | None:
        """Add a tensor of a form, once others were added; returns the largest finite magnitude in it, None for one of another form."""
        most = form.add(tensor)
        if most is not None:
            self._read += form.numel
            if self._read >= self._due:
                self._recentre()
        return most

    def _add_at(self, address: int, outer: int, inner: int) -> float:
        assert UNIT_KERNEL is not None
        if self._read == 0:
            UNIT_KERNEL.begin(address, outer, self.units, inner, self._pointers[0])
        most = UNIT_KERNEL.add(address, outer, self.units, inner, *self._pointers)
        self._count(outer * self.units * inner)
        return cast("float", most)

    def _count(self, numel: int) -> None:
        self._read += numel
        if self._read >= self._due:
            self._recentre()

    def stats(self) -> UnitStats:
        """What has been added, on the host."""
        rows, ranges = self._rows.cpu(), self._ranges.cpu().numpy()
        r = rows.numpy().copy()
        mean, m2, m3, m4 = _central(r, self._shift.cpu().numpy())
        constant = r[MIN] == r[MAX]
        for moment in (m2, m3, m4):
            moment[constant] = 0.0  # exactly: the mean of equal numbers may be off by a rounding
        mean[constant] = r[MIN][constant]
        counts = {"n": r[N], "nonfinite": r[NONFINITE], "positive": r[POSITIVE], "zero": r[ZERO], "large": r[LARGE]}
        return UnitStats(**counts, mean=mean, m2=m2, m3=m3, m4=m4, abs=r[ABS], min=r[MIN], max=r[MAX], ranges=ranges.copy())

    def _begin(self, block: torch.Tensor) -> None:
        """Any shift near the values will do to begin with: the mean of a few of each unit."""
        some = block[: max(1, FEW // block.shape[2]), :, :FEW].double()
        if not math.isfinite(float(some.sum())):
            some = torch.where(some.isfinite(), some, 0)
        self._shift.copy_(some.mean((0, 2)).nan_to_num_(0.0, 0.0, 0.0))

    def _add_plainly(self, block: torch.Tensor) -> float:
        """The same in torch operations, a chunk at a time."""
        outer = max(1, CHUNK // (block.shape[1] * block.shape[2]))
        return max(self._add_chunk(block[i : i + outer]) for i in range(0, block.shape[0], outer))

    def _add_chunk(self, block: torch.Tensor) -> float:
        x = block.double()
        finite = x.isfinite()
        x = torch.where(finite, x, 0.0)
        size = x.abs()
        d = torch.where(finite, x - self._shift[:, None], 0.0)
        d2 = d * d
        sums = (finite, ~finite, d, d2, d2 * d, d2 * d2, size)
        counts = (x > 0, (x == 0) & finite, size >= 6)
        for row, values in zip((*range(7), POSITIVE, ZERO, LARGE), (*sums, *counts), strict=True):
            self._rows[row] += values.sum((0, 2), dtype=torch.float64)
        self._rows[MIN] = torch.minimum(self._rows[MIN], torch.where(finite, x, torch.inf).amin((0, 2)))
        self._rows[MAX] = torch.maximum(self._rows[MAX], torch.where(finite, x, -torch.inf).amax((0, 2)))
        tiny = [((size < limit) & (size > 0)).sum(dtype=torch.float64) for limit in TINY]
        self._ranges += torch.stack([*tiny, *((size > limit).sum(dtype=torch.float64) for limit in OVER)])
        return float(size.max())

    def _recentre(self) -> None:
        """Move the shift to the mean where it is far from it: the sums become those of the central moments."""
        self._due = 4 * self._read
        if self._natively and UNIT_KERNEL is not None:
            UNIT_KERNEL.recentre(self.units, FAR, *self._pointers[:2])
            return
        rows, shift = self._rows, self._shift
        if not (rows[S1] * rows[S1] > FAR * FAR * rows[N] * rows[S2]).any():
            return
        mean, m2, m3, m4 = _central(rows, shift)
        if abs(m4.sum() - m4.sum()) == 0:  # beyond that, float64 itself has overflowed
            shift[:] = mean
            rows[S1], rows[S2], rows[S3], rows[S4] = 0.0, m2, m3, m4


def is_bare(tensor: torch.Tensor) -> bool:
    """Whether its numbers are float32 and lie in the memory of this process, where its strides say."""
    if type(tensor) is not torch.Tensor or tensor.dtype is not torch.float32 or tensor.layout is not torch.strided:
        return False
    return tensor.is_cpu and not tensor.is_nested and not tensor.is_neg() and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def sizes(x: torch.Tensor, axis: int) -> tuple[int, int]:
    """How often all units come, and how many numbers each has there in a row, of a contiguous tensor."""
    shape = x.shape
    return math.prod(shape[:axis]), math.prod(shape[axis + 1 :])


def laid_out(values: torch.Tensor, axis: int) -> torch.Tensor:
    """The tensor as [outer, units, inner] in one stretch of memory; only what lies otherwise is copied."""
    if values.dim() == 0:
        return values.reshape(1, 1, 1)
    axis %= values.dim()
    last = values.movedim(axis, -1)
    if last.is_contiguous():
        return last.reshape(-1, values.shape[axis], 1)
    values = values.contiguous()
    outer = values.shape[:axis].numel()
    return values.reshape(outer, values.shape[axis], -1)


def in_memory_order(values: torch.Tensor, axis: int) -> tuple[torch.Tensor, int]:
    """The dimensions in the order in which they lie in memory (channels last, batch and time swapped), and where the units are then.

    What is summed over may come in any order; only what has gaps is copied.
    """
    order = sorted(range(values.dim()), key=values.stride, reverse=True)
    return values.permute(order).contiguous(), order.index(axis)


def _central(rows: Any, shift: Any) -> tuple[Any, Any, Any, Any]:
    """Mean and central moments of what was summed about the shift; arrays of numpy or tensors."""
    n, s1, s2, s3, s4 = rows[N].clip(min=1), rows[S1], rows[S2], rows[S3], rows[S4]
    off = s1 / n
    square = off * off
    m2 = (s2 - off * s1).clip(min=0)
    m3 = s3 - 3 * off * s2 + 2 * square * s1
    m4 = (s4 - 4 * off * s3 + 6 * square * s2 - 3 * square * off * s1).clip(min=0)
    return shift + off, m2, m3, m4
