"""In which order rows of compiled graphs stand among those of eager hooks: a graph tells no order, so it is that of the modules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Place = tuple[str, str]  # the name of a model, a path in it


def post_order(places: Sequence[Place]) -> dict[Place, int]:
    """Ranks of modules given in order of registration: a module stands behind those inside it, as it returns after them."""
    order: list[Place] = []
    around: list[Place] = []
    for place in places:
        while around and not _inside(place, around[-1]):
            order.append(around.pop())
        around.append(place)
    order += reversed(around)
    return {place: rank for rank, place in enumerate(order)}


def in_order(seq: NDArray[np.int32], ranks: NDArray[np.float64]) -> NDArray[np.int32]:
    """New numbers for rows of which the first have a `seq`, which is true, and all have a rank.

    A row without one comes before the first of the others that a module of a higher rank was heard before or with.
    """
    known = len(seq)
    by_seq = np.argsort(seq, kind="stable")
    reached = ranks.astype(float)
    reached[by_seq] = np.maximum.accumulate(ranks[:known][by_seq]) if known else ranks[:0]
    pairs = np.stack([reached, np.concatenate([seq + 1, np.zeros(len(ranks) - known)])], axis=1)
    return np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int32)


def _inside(place: Place, around: Place) -> bool:
    return place[0] == around[0] and (not around[1] or place[1].startswith(around[1] + "."))
