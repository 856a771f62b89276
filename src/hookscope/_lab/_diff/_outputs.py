"""What several tensors on two sides have in common: the worst distance among those that can be paired, axes moved where they must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ._layout import layouts, pairs
from ._measure import SAME, Distance, distance, estimate
from ._prints import Print, digest, fingerprint, plain
from ._store import Store


@dataclass(frozen=True, slots=True)
class Compared:
    """The worst pair: its distance and layout, and both tensors where they are at hand. `mismatch` says why nothing could be paired."""

    distance: Distance | None = None
    layout: str = ""
    a: torch.Tensor | None = None
    b: torch.Tensor | None = None
    mismatch: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """A tensor of side a: its print, and the tensor itself where it was kept."""

    print: Print
    tensor: torch.Tensor | None = None


def joined(calls: Sequence[Sequence[Print]], store: Store) -> list[Known]:
    """Side a's tensors of one call, or of several whose first tensors are joined along the last axis. Loaded when compared."""
    if len(calls) == 1:
        return [Known(found) for found in calls[0]]
    parts = [store.get(prints[0]) for prints in calls if prints]
    whole = [part for part in parts if part is not None]
    if len(whole) < len(calls):
        return []
    tensor = torch.cat(whole, dim=-1)
    return [Known(fingerprint(tensor), tensor)]


def is_number(dtype: str) -> bool:
    """Whether tensors of that dtype are compared by distance and not by the share that differs."""
    return "float" in dtype or "complex" in dtype


def compare(a: Sequence[Known], b: Sequence[tuple[str, torch.Tensor]], store: Store, *, turned: bool = False) -> Compared:
    """The worst of all pairs; `turned` as in `layouts`."""
    if not a or not b:
        return Compared()
    values = [(path, plain(tensor)) for path, tensor in b]
    left = [(k.print.path, k.print.shape, is_number(k.print.dtype)) for k in a]
    right = [(path, tuple(value.shape), value.is_floating_point() or value.is_complex()) for path, value in values]
    matched = pairs(left, right)
    if (0 not in {i for i, _ in matched}) and left[0][2]:
        shapes = ["×".join(map(str, side[0][1])) or "scalar" for side in (left, right)]
        return Compared(mismatch=f"a's output is {shapes[0]} and b's is {shapes[1]}")
    found = [_one(a[i], values[j][1], store, turned) for i, j in matched]
    return max(found, key=_gravity, default=Compared())  # the first of equals


def _gravity(compared: Compared) -> tuple[bool, float]:
    far = compared.distance
    return (False, -1.0) if far is None else (far.only_a + far.only_b > 0, far.relative)


def _one(a: Known, b: torch.Tensor, store: Store, turned: bool) -> Compared:
    if digest(b) == a.print.digest:
        return Compared(SAME)
    tensor = a.tensor if a.tensor is not None else store.get(a.print)
    if tensor is None:
        return Compared(estimate(a.print, fingerprint(b))) if a.print.shape == tuple(b.shape) else Compared()
    laid = layouts(b, tuple(tensor.shape), turned=turned)
    tries = [Compared(distance(tensor, value.contiguous()), name, tensor, value) for name, value in laid]
    return min(tries, key=_gravity)
