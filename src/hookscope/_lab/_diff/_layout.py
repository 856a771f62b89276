"""One tensor laid out as another: axes in another order (batch first or not, channels last), leading axes merged or split."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch

Shape = tuple[int, ...]


def layouts(tensor: torch.Tensor, shape: Shape, *, turned: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensor in that shape, in every way that moves whole axes only, each with its name; as it is, the name is empty.

    Where the shape is right as it is, axes of one size are exchanged only if it is known that the sides lay them out in their own way.
    """
    if tuple(tensor.shape) == shape:
        yield "", tensor
        if not turned:
            return
    if len(shape) <= 5 and sorted(tensor.shape) == sorted(shape):
        for order in itertools.permutations(range(len(shape))):
            if order != tuple(range(len(shape))) and all(tensor.shape[axis] == size for axis, size in zip(order, shape, strict=True)):
                yield f"axes {order}", tensor.permute(order)
    elif fits(tuple(tensor.shape), shape):
        yield "reshaped", tensor.reshape(shape)


def fits(a: Shape, b: Shape) -> bool:
    """Whether a tensor of one shape may be the same as one of the other, laid out differently."""
    if sorted(a) == sorted(b):
        return True
    without = [tuple(size for size in shape if size != 1) for shape in (a, b)]
    return math.prod(a) == math.prod(b) and (without[0] == without[1] or (bool(a) and bool(b) and a[-1] == b[-1]))


def pairs(a: Sequence[tuple[str, Shape, bool]], b: Sequence[tuple[str, Shape, bool]]) -> list[tuple[int, int]]:
    """Which tensor of one structure is which of the other: by path first, then in order.

    Given are path, shape, and whether it is floating.
    """
    free = list(range(len(b)))
    found: list[tuple[int, int]] = []
    for same_path in (True, False):
        for i, (path, shape, floating) in enumerate(a):
            if any(i == left for left, _ in found):
                continue
            for j in free:
                if b[j][2] == floating and fits(shape, b[j][1]) and (not same_path or b[j][0] == path):
                    found.append((i, j))
                    free.remove(j)
                    break
    return sorted(found)
