"""What a tensor's values look like, asked only when something is wrong, so that waiting for the device is fine."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .._taps._parts import local
from ._verdict import Operand, Verdict


@dataclass(frozen=True, slots=True)
class Badness:
    """Whether there is any NaN, and any Inf."""

    nan: bool = False
    inf: bool = False

    def __bool__(self) -> bool:
        return self.nan or self.inf

    def __or__(self, other: Badness) -> Badness:
        return Badness(self.nan or other.nan, self.inf or other.inf)


FINE = Badness()


def numbers(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor as plain real numbers, or None where it has none that could be bad; of a distributed one this rank's part."""
    tensor = local(tensor)
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.layout != torch.strided or tensor.numel() == 0:
        return None
    plain = tensor.detach()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    return plain.float() if plain.dtype.itemsize < 4 else plain


def badness(tensor: torch.Tensor) -> Badness:
    """Whether it holds NaN or Inf."""
    plain = numbers(tensor)
    if plain is None:
        return FINE
    total = float(plain.sum(dtype=torch.float64))  # finite, unless something in it is not
    if math.isfinite(total):
        return FINE
    return Badness(bool(torch.isnan(plain).any()), bool(torch.isinf(plain).any()))


def harmful(tensor: torch.Tensor) -> bool:
    """Whether it holds NaN or +Inf, or nothing but Inf; -Inf among finite values is how a mask looks."""
    bad = badness(tensor)
    if bad.nan or not bad:
        return bad.nan
    plain = numbers(tensor)
    return plain is not None and (bool(torch.isposinf(plain).any()) or bool(torch.isneginf(plain).all()))


def largest(tensor: torch.Tensor) -> float:
    """The largest finite magnitude; 0 where there is none."""
    plain = numbers(tensor)
    if plain is None:
        return 0.0
    magnitude = plain.abs()
    magnitude = torch.where(torch.isfinite(magnitude), magnitude, 0.0)
    return float(magnitude.max())


def operand(position: int, tensor: torch.Tensor) -> Operand:
    """Describe one input."""
    plain = numbers(tensor)
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if plain is None:
        return Operand(position, shape, dtype, math.nan, math.nan, 0, 0)
    finite = plain[torch.isfinite(plain)]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (math.nan, math.nan)
    return Operand(position, shape, dtype, low, high, int(torch.isnan(plain).sum()), int(torch.isinf(plain).sum()))


def bad_samples(tensor: torch.Tensor, batch: int | None) -> tuple[int, ...]:
    """Positions along the first dimension that is as long as the batch at which something is bad; none where every one is."""
    tensor = local(tensor)
    plain = numbers(tensor)
    if plain is None or not batch or batch < 2 or batch not in tensor.shape or tensor.is_complex():
        return ()
    rows = plain.movedim(tuple(tensor.shape).index(batch), 0).reshape(batch, -1)
    bad = (~torch.isfinite(rows)).any(1).nonzero().flatten().tolist()
    return tuple(bad[:16]) if len(bad) < batch else ()


def came_in(tensor: torch.Tensor, batch: int | None, *, because: str = "it was there before anything ran") -> Verdict:
    """The verdict on an input that was bad before any operation."""
    found = badness(tensor)
    result = " and ".join(name for name, there in (("NaN", found.nan), ("Inf", found.inf)) if there)
    samples = bad_samples(tensor, batch)
    return Verdict("input", "forward", None, operands=(operand(0, tensor),), result=result, samples=samples, because=because)
