"""The quick way of a thousand ranks adds what numpy adds, and refuses a batch that is not like the first."""

from __future__ import annotations

import numpy as np
import pytest

from hookscope._core._stats import COLUMNS, EMPTY
from hookscope._record._routine import Routine
from hookscope._record._scan import Columns

ROWS = 6
OWN = np.array([True, False, True, True, False, True])
ALONE = ~OWN & np.array([True, True, True, True, False, True])  # the fifth row is in parts: neither


def batch(seed: int) -> Columns:
    """Counts of at least four; what is held in common is the same in all."""
    rng, common = np.random.default_rng(seed), np.random.default_rng(99)
    found: Columns = {}
    for i, name in enumerate(COLUMNS):
        own, shared = (r.integers(4, 9, ROWS) if i < 1 else r.integers(0, 2, ROWS) if i < 4 else r.normal(size=ROWS) for r in (rng, common))
        found[name] = np.where(ALONE, shared, own)
    return found


def routine() -> Routine:
    return Routine(np.full(ROWS, 4.0), OWN, ALONE, batch(0))


def test_it_adds_what_numpy_adds_whatever_the_counts() -> None:
    taken, batches = routine(), [batch(seed) for seed in (0, 1, 2, 0)]
    assert all(taken.add(one) for one in batches)
    for i, (name, sums) in enumerate(zip(COLUMNS, taken.sums(), strict=True)):
        stacked = np.stack([one[name][OWN] for one in batches]).astype(float)
        expected = stacked.sum(0) if i < 6 else np.minimum(stacked.min(0), EMPTY[6]) if i == 6 else stacked.max(0)
        np.testing.assert_allclose(sums, expected, rtol=1e-15)
    assert taken.ranks == 4


@pytest.mark.parametrize("name", COLUMNS)
def test_a_copy_that_differs_is_refused_and_nothing_of_it_taken(name: str) -> None:
    taken, odd = routine(), batch(1)
    assert taken.add(batch(1))
    before = [sums.copy() for sums in taken.sums()]
    odd[name] = odd[name].copy()
    odd[name][np.flatnonzero(ALONE)[0]] += 1
    assert not taken.add(odd)
    assert all(np.array_equal(a, b) for a, b in zip(before, taken.sums(), strict=True))
    assert taken.ranks == 1


def test_what_became_clean_on_one_rank_alone_is_refused() -> None:
    first = batch(0)
    first["nan"] = np.where(ALONE, 1, 0)
    taken, clean = Routine(np.full(ROWS, 4.0), OWN, ALONE, first), {**first, "nan": np.zeros(ROWS, np.int64)}
    assert taken.add(first)
    assert not taken.add(clean)


def test_a_part_that_is_smaller_than_it_should_be_is_refused() -> None:
    taken, short = routine(), batch(1)
    short["count"] = np.where(OWN, 3, short["count"])
    assert not taken.add(short)
