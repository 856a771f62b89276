"""How far two tensors of one shape are apart: relative L2, largest absolute difference, cosine, units in the last place."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ._prints import PIECE, Print


@dataclass(frozen=True, slots=True)
class Distance:
    """`b` against `a`.

    `relative` is norm(a - b) / norm(a); of integers and truth values, the share that differs. `ulp` counts in units in the last place of
    the coarser of the two dtypes, at the larger of the two magnitudes. NaN and Inf at the same places are equal and count in nothing else;
    `only_a` and `only_b` count those that the other side lacks. `scale` is the factor that brings `a` closest to `b`.
    `exact` says that no element differs, `estimated` that only samples were compared.
    """

    relative: float
    max_abs: float
    cosine: float
    ulp: float
    only_a: int = 0
    only_b: int = 0
    scale: float = 1.0
    exact: bool = False
    estimated: bool = False


SAME = Distance(0.0, 0.0, 1.0, 0.0, exact=True)


def distance(a: torch.Tensor, b: torch.Tensor) -> Distance:
    """Of two tensors on the CPU, in float64, a piece at a time."""
    if not (a.is_floating_point() or a.is_complex()) and not (b.is_floating_point() or b.is_complex()):
        return _share(a, b)
    spacing = max((torch.finfo(t.dtype).eps for t in (a, b) if t.is_floating_point()), default=2.0**-52)
    sums = _Sums(spacing)
    for left, right in zip(torch.split(_real(a), PIECE), torch.split(_real(b), PIECE), strict=True):
        sums.add(left.double(), right.double())
    return sums.distance


def estimate(a: Print, b: Print) -> Distance:
    """Of two tensors of which only the fingerprints are known."""
    if a.digest == b.digest:
        return SAME
    dtype = torch.float64 if "float" in a.dtype or "float" in b.dtype else torch.int64
    found = distance(*(torch.tensor(side.sample, dtype=torch.float64).to(dtype) for side in (a, b)))
    spread = abs(a.norm - b.norm) / a.norm if a.norm else float(b.norm > 0)
    return Distance(
        max(found.relative, spread), found.max_abs, found.cosine, found.ulp, max(found.only_a, a.nan + a.inf - b.nan - b.inf),
        max(found.only_b, b.nan + b.inf - a.nan - a.inf), found.scale, estimated=True,
    )  # fmt: skip


class _Sums:
    def __init__(self, spacing: float) -> None:
        self.spacing = spacing
        self.aa = self.bb = self.ab = self.dd = self.max_abs = self.ulp = 0.0
        self.only_a = self.only_b = 0

    def add(self, a: torch.Tensor, b: torch.Tensor) -> None:
        same = (a == b) | (a.isnan() & b.isnan())
        self.only_a += int((~a.isfinite() & ~same).sum())
        self.only_b += int((~b.isfinite() & ~same & a.isfinite()).sum())
        finite = a.isfinite() & b.isfinite()
        a, b = a.where(finite, 0.0), b.where(finite, 0.0)
        apart = (a - b).abs()
        self.aa, self.bb, self.ab = self.aa + float(a.dot(a)), self.bb + float(b.dot(b)), self.ab + float(a.dot(b))
        self.dd += float(apart.dot(apart))
        if apart.numel():
            self.max_abs = max(self.max_abs, float(apart.max()))
            _, exponent = torch.frexp(torch.maximum(a.abs(), b.abs()))
            units = torch.ldexp(torch.full_like(apart, self.spacing), exponent.double() - 1)
            self.ulp = max(self.ulp, float((apart / units.clamp_min(1e-300)).max()))

    @property
    def distance(self) -> Distance:
        relative = math.sqrt(self.dd / self.aa) if self.aa else math.inf if self.dd else 0.0
        norms = math.sqrt(self.aa) * math.sqrt(self.bb)
        cosine = min(1.0, self.ab / norms) if norms else float(self.aa == self.bb)
        exact = self.max_abs == 0 and not self.only_a and not self.only_b
        scale = self.ab / self.aa if self.aa else 1.0
        return Distance(relative, self.max_abs, 1.0 if exact else cosine, self.ulp, self.only_a, self.only_b, scale, exact)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)


def _share(a: torch.Tensor, b: torch.Tensor) -> Distance:
    differ = a != b
    share = float(differ.double().mean()) if differ.numel() else 0.0
    largest = float((a.double() - b.double()).abs().max()) if differ.numel() else 0.0
    return Distance(share, largest, 1.0 - share, largest, exact=share == 0)
