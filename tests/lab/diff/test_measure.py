"""Distances, fingerprints, layouts and limits against arithmetic by hand and numpy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookscope._lab._diff._layout import fits, layouts, pairs
from hookscope._lab._diff._measure import distance, estimate
from hookscope._lab._diff._prints import fingerprint, plain
from hookscope._lab._diff._store import Store
from hookscope._lab._diff._tolerance import limit, unit, widened

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=1, max_size=40))
def test_a_distance_is_that_of_numpy(values: list[tuple[float, float]]) -> None:
    a, b = np.array(values).T
    found = distance(torch.tensor(a.copy()), torch.tensor(b.copy()))
    norm = np.linalg.norm(a)
    assert found.max_abs == np.abs(a - b).max()
    assert found.exact == bool((a == b).all())
    if norm > 1e-100:
        assert found.relative == pytest.approx(np.linalg.norm(a - b) / norm, rel=1e-9)
    if norm > 1e-100 and np.linalg.norm(b) > 1e-100:
        assert found.cosine == pytest.approx(a @ b / norm / np.linalg.norm(b), abs=1e-9)


def test_a_unit_in_the_last_place_is_that_of_the_coarser_dtype() -> None:
    one = torch.tensor([1.0, 2.0, 1024.0])
    assert distance(one, torch.nextafter(one, torch.tensor(torch.inf))).ulp == 1.0
    assert distance(one, (one * (1 + 2.0**-7))).ulp == 2.0**16
    assert distance(one, (one * (1 + 2.0**-7)).bfloat16()).ulp == 1.0


def test_nan_and_inf_count_only_where_they_are_on_one_side() -> None:
    nan, inf = math.nan, math.inf
    both = torch.tensor([1.0, nan, inf, -inf])
    assert distance(both, both.clone()).exact
    found = distance(torch.tensor([1.0, nan, 2.0, inf]), torch.tensor([1.0, 3.0, inf, -inf]))
    assert (found.only_a, found.only_b, found.relative) == (2, 1, 0.0)


def test_nothing_against_something_is_infinitely_far_and_whole_numbers_by_share() -> None:
    assert math.isinf(distance(torch.zeros(3), torch.ones(3)).relative)
    assert distance(torch.zeros(3), -torch.zeros(3)).exact
    assert distance(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 5])).relative == 0.25


@settings(deadline=None)
@given(st.integers(0, 5000), st.floats(1e-6, 0.5))
def test_an_estimate_from_prints_is_near_the_distance(size: int, noise: float) -> None:
    a = torch.randn(size + 300, generator=torch.Generator().manual_seed(size))
    b = a + noise * torch.randn(size + 300, generator=torch.Generator().manual_seed(size + 1))
    assert estimate(fingerprint(a), fingerprint(b)).relative == pytest.approx(distance(a, b).relative, rel=0.5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 5)])
def test_a_stored_tensor_comes_back_and_is_stored_once(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    value = (torch.randn(shape) * 4).to(dtype)
    store = Store(tmp_path)
    first, second = store.put(value, "[0]"), store.put(value.clone(), "[1]")
    back = store.get(first)
    assert back is not None
    assert (back.dtype, back.shape, first.digest) == (dtype, value.shape, second.digest)
    assert torch.equal(back.to(torch.complex128), value.to(torch.complex128))
    assert len(list(tmp_path.iterdir())) == 1


def test_the_same_bytes_in_another_shape_or_dtype_are_another_tensor() -> None:
    zeros = torch.zeros(4)
    others = [zeros.view(2, 2), zeros.view(torch.int32), torch.zeros(5)]
    assert all(fingerprint(other).digest != fingerprint(zeros).digest for other in others)
    assert fingerprint(plain(torch.zeros(2, 4)[:, ::2])).digest == fingerprint(zeros.view(2, 2)).digest


@settings(deadline=None)
@given(st.permutations([2, 3, 4]), st.permutations([0, 1, 2]))
def test_any_order_of_axes_is_found_again(sizes: list[int], order: list[int]) -> None:
    a = torch.randn(sizes)
    moved = a.permute(order)
    assert fits(tuple(moved.shape), tuple(a.shape))
    assert any(torch.equal(value, a) for _, value in layouts(moved, tuple(a.shape)))


def test_axes_of_one_size_are_exchanged_only_on_request() -> None:
    square = torch.arange(4.0).view(2, 2)
    assert [name for name, _ in layouts(square, (2, 2))] == [""]
    assert [name for name, _ in layouts(square, (2, 2), turned=True)] == ["", "axes (1, 0)"]
    assert [value.shape for _, value in layouts(torch.zeros(6, 4), (2, 3, 4))] == [(2, 3, 4)]
    assert not fits((6, 4), (2, 12))


def test_tensors_are_paired_by_path_and_then_in_order() -> None:
    a = [("[0]", (2, 3), True), (".mask", (2,), False)]
    b = [(".mask", (2,), False), (".x", (2, 3), True), (".y", (2, 3), True)]
    assert pairs(a, b) == [(0, 1), (1, 0)]
    assert pairs([("", (2, 3), True)], [("", (4,), True)]) == []


def test_limits_grow_like_a_random_walk_with_the_coarser_dtype() -> None:
    assert unit(["float32", "float64", "int64"]) == 2.0**-24
    assert unit(["float32", "bfloat16"]) == 2.0**-8
    one, four = (limit("auto", 2.0**-24, calls=calls, terms=0).value for calls in (1, 4))
    assert four == 2 * one
    assert limit(0.5, 2.0**-24, calls=9, terms=9).value == 0.5
    assert widened(limit("auto", 2.0**-8, calls=1, terms=1), 1e-6, 2.0**-24).value == pytest.approx(4e-6 * 2**16)
    assert widened(limit(0.1, 2.0**-8, calls=1, terms=1), 1.0, 2.0**-24).value == 0.1
