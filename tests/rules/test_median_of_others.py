"""Each rank is held against the median of the others, its own number left out, as `np.median` would say it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hookscope._rules._rank_apart import _median_of_others

TABLES = arrays.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(2, 7)), elements=st.sampled_from([0.5, 1.0, 2.0, 3.5]))


@given(TABLES)
def test_it_is_the_median_without_that_rank(values: np.ndarray) -> None:
    expected = [np.median(np.delete(values, rank, axis=1), axis=1) for rank in range(values.shape[1])]
    assert np.array_equal(_median_of_others(values).T, expected)
