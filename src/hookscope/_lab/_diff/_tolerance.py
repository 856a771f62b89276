"""How large a difference rounding alone explains at one site."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from ..._core._errors import UsageError

Tol = float | Literal["auto"]
EXACT = 2.0**-53
LAYER = 3.0  # roundings that one layer is made of, of inputs, weights and outputs; one that has more is measured


@dataclass(frozen=True, slots=True)
class Limit:
    """Relative L2 up to which a difference is rounding; `source` is `dtype`, `measured` or `given`. `unit` is the unit roundoff."""

    value: float
    unit: float
    source: str = "dtype"


def checked(tol: object) -> Tol:
    """`tol` as `diff` takes it."""
    if tol == "auto":
        return "auto"
    if isinstance(tol, bool) or not isinstance(tol, (int, float)) or not 0 <= tol < math.inf:
        raise UsageError(f"tol={tol!r} is no tolerance: give a relative L2 error of 0 or more, such as 1e-4, or 'auto'")
    return float(tol)


def unit(dtypes: Iterable[str], devices: Iterable[str] = ()) -> float:
    """The unit roundoff of the coarsest of these dtypes: half the distance from 1 to the next number. TF32, where it is on, has 11 bits."""
    kinds = [getattr(torch, name) for name in set(dtypes)]
    units = [torch.finfo(kind).eps / 2 for kind in kinds if kind.is_floating_point or kind.is_complex]
    tf32 = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    if tf32 and torch.float32 in kinds and any(device.startswith("cuda") for device in devices):
        units.append(2.0**-11)
    return max(units, default=EXACT)


def limit(tol: Tol, roundoff: float, *, calls: int, terms: int) -> Limit:
    """The limit for a module of `calls` calls (itself and all inside) whose largest weight sums `terms` products.

    Rounding errors of independent operations add like a random walk: u sqrt(n) rather than u n (Higham and Mary, SIAM J. Sci. Comput. 41
    (2019) A2815, theorem 2.4).
    """
    if tol != "auto":
        return Limit(tol, roundoff, "given")
    return Limit(roundoff * (LAYER * math.sqrt(calls) + math.sqrt(terms)), roundoff)


def widened(known: Limit, error: float, own: float) -> Limit:
    """The limit after measuring: `error` is what rounding did to this module on these inputs against float64, `own` its unit roundoff."""
    value = 4 * error * max(1.0, known.unit / own)
    return Limit(value, known.unit, "measured") if known.source != "given" and value > known.value else known
