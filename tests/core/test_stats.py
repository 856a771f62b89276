"""The stats of parts merge to the stats of the whole."""

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookscope._core._stats import COLUMNS, EMPTY, WIDTH, Stats, merge_groups

# Integers as floats: sums are exact in any order, so that merging can be held to equality.
VALUE = st.one_of(st.integers(-1000, 1000).map(float), st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf]))
PARTS = st.lists(st.lists(VALUE, max_size=6), min_size=1, max_size=6)


def measure(values: list[float]) -> Stats:
    """What the definition says, by torch in float64."""
    t = torch.tensor(values, dtype=torch.float64)
    finite, ordered = t[t.isfinite()], t[~t.isnan()]
    return Stats(
        float(t.numel()),
        float(t.isnan().sum()),
        float(t.isinf().sum()),
        float((t == 0).sum()),
        float(finite.sum()),
        float(finite.square().sum()),
        float(ordered.min()) if len(ordered) else math.inf,
        float(ordered.max()) if len(ordered) else -math.inf,
    )


def merged(parts: list[Stats]) -> Stats:
    total = EMPTY
    for part in parts:
        total = total.merge(part)
    return total


@given(PARTS)
def test_parts_merge_to_the_whole(parts: list[list[float]]) -> None:
    assert merged([measure(part) for part in parts]) == measure([v for part in parts for v in part])


@given(st.permutations(range(4)), st.lists(st.lists(VALUE, max_size=5), min_size=4, max_size=4))
def test_the_order_of_merging_does_not_matter(order: list[int], parts: list[list[float]]) -> None:
    stats = [measure(part) for part in parts]
    assert merged([stats[i] for i in order]) == merged(stats)
    assert stats[0].merge(stats[1].merge(stats[2])) == stats[0].merge(stats[1]).merge(stats[2])


@given(st.lists(VALUE, max_size=5))
def test_the_empty_stats_change_nothing(values: list[float]) -> None:
    assert measure(values).merge(EMPTY) == EMPTY.merge(measure(values)) == measure(values)
    assert measure([]) == EMPTY


@given(st.lists(st.lists(st.lists(VALUE, max_size=4), min_size=1, max_size=4), min_size=1, max_size=4))
def test_groups_of_rows_merge_to_the_whole_of_each_group(groups: list[list[list[float]]]) -> None:
    rows = np.array([measure(part) for group in groups for part in group])
    starts = np.cumsum([0] + [len(group) for group in groups[:-1]])
    whole = np.array([measure([v for part in group for v in part]) for group in groups])
    np.testing.assert_array_equal(merge_groups(rows, starts), whole)


def test_no_groups_merge_to_no_rows() -> None:
    assert merge_groups(np.empty((0, WIDTH)), np.empty(0, dtype=np.intp)).shape == (0, WIDTH)


def test_the_columns_stand_in_the_order_that_runs_are_written_in() -> None:
    assert COLUMNS == ("count", "nan", "inf", "zeros", "sum", "sumsq", "min", "max")
