"""Ops that need nothing but the tensor itself and numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..._core._errors import UsageError
from ._op import Op
from ._operand import Number, fitted, tensor_of
from ._place import Place

LARGE = 2.0**50


@dataclass(frozen=True, repr=False)
class Zero(Op):
    """`hookscope.zero`."""

    def edited(self, value: torch.Tensor, place: Place) -> torch.Tensor:
        return torch.zeros_like(value)


@dataclass(frozen=True, repr=False, eq=False)
class Scale(Op):
    """`hookscope.scale`."""

    factor: Number

    def edited(self, value: torch.Tensor, place: Place) -> torch.Tensor:
        return value * (fitted(self.factor, value, place, "the factor") if isinstance(self.factor, torch.Tensor) else self.factor)


@dataclass(frozen=True, repr=False, eq=False)
class Add(Op):
    """`hookscope.add`."""

    vector: Number

    def edited(self, value: torch.Tensor, place: Place) -> torch.Tensor:
        return value + (fitted(self.vector, value, place, "the vector") if isinstance(self.vector, torch.Tensor) else self.vector)


@dataclass(frozen=True, repr=False)
class Clamp(Op):
    """`hookscope.clamp`."""

    lo: float | None
    hi: float | None

    def edited(self, value: torch.Tensor, place: Place) -> torch.Tensor:
        return value.clamp(self.lo, self.hi)


@dataclass(frozen=True, repr=False)
class ClipNorm(Op):
    """`hookscope.clip_norm`."""

    max_norm: float

    def edited(self, value: torch.Tensor, place: Place) -> torch.Tensor:
        part = value if place.mask is None else torch.where(place.mask, value, torch.zeros_like(value))
        part = part.float() if value.dtype in (torch.float16, torch.bfloat16) else part
        unit = _power_below(part)
        norm = torch.linalg.vector_norm(part / unit)
        bound = self.max_norm / unit
        factor: torch.Tensor = self.max_norm / torch.maximum(norm, bound)  # so that a norm of zero has a gradient, too
        return value / unit.to(value.dtype) * factor.to(value.dtype)


def _power_below(values: torch.Tensor) -> torch.Tensor:
    """1, or where values are so large that their squares may overflow, a power of two of their size: to divide by it costs no digit."""
    largest = values.detach().abs().amax() if values.numel() else values.new_zeros(()).abs()
    one = torch.ones_like(largest)
    return torch.where(largest.isfinite() & (largest > LARGE), torch.ldexp(one, torch.frexp(largest).exponent - 1), one)


@dataclass(frozen=True, repr=False)
class ZeroNonfinite(Op):
    """`hookscope.zero_nonfinite`."""

    def edited(self, value: torch.Tensor, place: Place) -> torch.Tensor:
        return torch.where(value.isfinite(), value, torch.zeros_like(value))


def zero() -> Op:
    """Zeros; no gradient flows to what they replace.

    >>> import torch
    >>> import hookscope as hs
    >>> with hs.edit(torch.nn.Identity(), {"(root)": hs.zero().at(units=1)}) as e:
    ...     e.model(torch.ones(1, 3))
    tensor([[1., 0., 1.]])
    """
    return Zero()


def scale(factor: Number) -> Op:
    """The value times `factor`: a number, one for each unit, or a tensor that broadcasts to the value. The gradient is scaled likewise.

    On a gradient, it shrinks or grows what the layers before it learn from: `{"embed:output_grad": hs.scale(0.1)}` is the embedding
    gradient shrink of GLM-130B (Zeng et al., 2022). Raises `UsageError` in the forward where the shape does not fit.

    >>> import torch
    >>> import hookscope as hs
    >>> with hs.edit(torch.nn.Identity(), {"(root)": hs.scale(0.5)}) as e:
    ...     e.model(torch.ones(2))
    tensor([0.5000, 0.5000])
    """
    return Scale(_number(factor, "the factor"))


def add(vector: Number) -> Op:
    """The value plus `vector`: a number, one number for each unit (a steering vector), or a tensor that broadcasts to the value.

    The gradient of the value passes unchanged, and a vector that requires grad receives its own. Raises `UsageError` in the forward where
    the shape does not fit.

    >>> import torch
    >>> import hookscope as hs
    >>> with hs.edit(torch.nn.Identity(), {"(root)": hs.add(torch.tensor([1.0, -1.0]))}) as e:
    ...     e.model(torch.zeros(1, 2))
    tensor([[ 1., -1.]])
    """
    return Add(_number(vector, "the vector"))


def clamp(lo: float | None = None, hi: float | None = None) -> Op:
    """The value held between `lo` and `hi`; None leaves a side open. No gradient flows where it was outside. NaN stays NaN.

    >>> import torch
    >>> import hookscope as hs
    >>> with hs.edit(torch.nn.Identity(), {"(root)": hs.clamp(0, 6)}) as e:
    ...     e.model(torch.tensor([-1.0, 3.0, 8.0]))
    tensor([0., 3., 6.])
    """
    if lo is None and hi is None:
        raise UsageError("clamp() holds nothing: give lo, hi or both")
    if lo is not None and hi is not None and not lo <= hi:
        raise UsageError(f"clamp(lo={lo}, hi={hi}) leaves no value: lo has to be at most hi")
    return Clamp(lo, hi)


def clip_norm(max_norm: float) -> Op:
    """The value scaled down as a whole where its L2 norm is above `max_norm`; a smaller one stays as it is.

    Meant for gradients, where each site is clipped by itself: `{"**:param_grad": hs.clip_norm(1.0)}` clips the gradient of each parameter
    that one backward brings, before it is added up. Narrowed by `at`, the norm is that of the part. A norm that is not finite leaves no
    finite value: put `hs.zero_nonfinite()` before it. Under a `GradScaler` gradients carry the loss scale here.

    >>> import torch
    >>> import hookscope as hs
    >>> with hs.edit(torch.nn.Identity(), {"(root)": hs.clip_norm(1.0)}) as e:
    ...     e.model(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """
    if not max_norm > 0:
        raise UsageError(f"max_norm={max_norm!r} leaves nothing: give a number above 0, or use hs.zero()")
    return ClipNorm(float(max_norm))


def zero_nonfinite() -> Op:
    """Zeros in place of NaN and Inf; everything else stays, and no gradient flows to what was replaced.

    >>> import torch
    >>> import hookscope as hs
    >>> with hs.edit(torch.nn.Identity(), {"(root)": hs.zero_nonfinite()}) as e:
    ...     e.model(torch.tensor([1.0, float("nan"), float("inf")]))
    tensor([1., 0., 0.])
    """
    return ZeroNonfinite()


def _number(given: Number, what: str) -> Number:
    return float(given) if isinstance(given, int | float) else tensor_of(given, what)
