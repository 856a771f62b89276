"""One tensor into eight numbers, by every backend, against the definition in Python's floats."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookscope._core._stats import EMPTY, Stats
from hookscope._stats import Cells, reduce_into

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
BITS = {torch.float32: np.int32, torch.float64: np.int64, torch.float16: np.int16, torch.bfloat16: np.int16}
EDGES = [0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 2047, 2048, 2049, 4097, 32769, 70001]
one_backend_a_test = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def any_bits(draw: st.DrawFn) -> torch.Tensor:
    """Floats of any bit pattern: NaNs with payloads, infinities, subnormals and both zeros come by themselves."""
    dtype = draw(st.sampled_from(FLOATS))
    kind = np.dtype(BITS[dtype])
    patterns = draw(st.binary(max_size=40 * kind.itemsize).map(lambda b: b[: len(b) // kind.itemsize * kind.itemsize]))
    tensor = torch.from_numpy(np.frombuffer(patterns, kind).copy()).view(dtype)
    return tensor.repeat(draw(st.sampled_from([1, 3, 70]))) if dtype is not torch.float64 else tensor.clamp(-1e150, 1e150)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("n", EDGES)
def test_every_length_around_a_vector_or_block_is_right(reduced, dtype, n):
    generator = torch.Generator().manual_seed(n)
    reduced.check(torch.randn(n, generator=generator, dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 0.0, -0.0])
def test_one_odd_value_is_counted_wherever_it_stands(reduced, dtype, odd):
    for n in (5, 40, 2100):
        for place in {0, 1, n // 2, n - 2, n - 1}:
            tensor = torch.linspace(1, 2, n, dtype=torch.float64).to(dtype)
            tensor[place] = odd
            reduced.check(tensor)


@one_backend_a_test
@given(tensor=any_bits())
def test_any_bit_pattern_is_right(reduced, tensor):
    reduced.check(tensor)


@one_backend_a_test
@given(tensor=any_bits(), data=st.data())
def test_the_stats_of_any_split_merge_to_those_of_the_whole(reduced, tensor, data):
    cut = data.draw(st.integers(0, len(tensor)))
    merged, whole = reduced(tensor[:cut]).merge(reduced(tensor[cut:])), reduced(tensor)
    assert (*merged[:4], *merged[6:]) == (*whole[:4], *whole[6:])
    finite = tensor[tensor.isfinite()].double()
    assert math.isclose(merged.sum, whole.sum, rel_tol=0, abs_tol=1e-12 * finite.abs().sum().item())
    assert math.isclose(merged.sumsq, whole.sumsq, rel_tol=1e-12, abs_tol=1e-300)


@one_backend_a_test
@given(tensor=any_bits(), seed=st.integers(0, 99))
def test_the_order_of_the_elements_does_not_matter(reduced, tensor, seed):
    order = torch.randperm(len(tensor), generator=torch.Generator().manual_seed(seed))
    reduced.check(tensor[order], tensor.double().tolist())


def test_no_element_gives_the_empty_row(reduced):
    for dtype in (*FLOATS, torch.int64, torch.bool):
        assert reduced(torch.empty(0, 3, dtype=dtype)) == EMPTY
        assert reduced(torch.empty(3, 0, dtype=dtype).T) == EMPTY


def test_all_nan_has_neither_minimum_nor_maximum(reduced):
    assert reduced(torch.full((3000,), math.nan)) == Stats(3000, 3000, 0, 0, 0.0, 0.0, math.inf, -math.inf)


def test_a_mask_of_minus_infinity_shows_as_the_minimum(reduced):
    assert reduced(torch.tensor([-math.inf, 1.0, 2.0])) == Stats(3, 0, 1, 0, 3.0, 5.0, -math.inf, 2.0)


@pytest.mark.parametrize("value", [1e30, 3e38, 1e-25, 1e-38, 1e-45])
def test_squares_beyond_what_float32_holds_are_right(reduced, value):
    tensor = torch.full((5000,), value)
    stored = float(np.float32(value))
    assert reduced(tensor).sumsq == pytest.approx(5000 * stored * stored, rel=1e-12)


def test_a_float16_overflow_and_a_subnormal_are_seen_as_stored(reduced):
    tensor = torch.tensor([70000.0, 6e-8, 1e-9, -65504.0]).half()
    assert reduced(tensor) == Stats(4, 0, 1, 1, 2.0**-24 - 65504.0, 65504.0**2 + 2.0**-48, -65504.0, math.inf)


def test_a_sum_that_cancels_keeps_its_small_remainder(reduced):
    tensor = torch.tensor([1e8, 1.0, -1e8] * 3000)
    assert reduced(tensor).sum == 3000.0


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16], ids=str)
def test_integers_and_booleans_are_exact(reduced, dtype):
    tensor = torch.tensor([0, 1, 1, 0, 1] if dtype is torch.bool else [0, 1, 100, 7, 0]).to(dtype)
    reduced.check(tensor)


def test_integers_that_would_overflow_their_own_sum_do_not(reduced):
    assert reduced(torch.full((4,), 2**62)).sum == 2.0**64


def test_nothing_of_the_tensor_or_the_generator_changes(reduced):
    leaf = torch.randn(40, 3, requires_grad=True)
    tensor = (leaf * 2).T
    version, values, state = tensor._version, tensor.detach().clone(), torch.get_rng_state()
    reduced(tensor)
    reduced(leaf)
    reduced(tensor[::2].int())
    assert tensor._version == version
    assert torch.equal(tensor, values)
    assert torch.equal(torch.get_rng_state(), state)
    assert not reduced.row.view.requires_grad
    tensor.sum().backward()
    assert torch.equal(leaf.grad, torch.full((40, 3), 2.0))


def test_autocast_changes_no_number(reduced):
    x = torch.randn(333, 3, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for tensor in (x, x.double(), x.bfloat16(), x[::2], (x * 9).int()):
            reduced.check(tensor)


def test_inference_mode_may_begin_or_end_between_any_two_steps():
    with torch.inference_mode():
        cells = Cells("cpu")
        row = cells.row()
        assert reduce_into(row, torch.arange(4.0))
        assert reduce_into(row, torch.arange(4))
        made_inside = torch.arange(4)
    assert reduce_into(row, torch.arange(5))
    assert reduce_into(row, made_inside)
    assert cells.read([row])[0].tolist() == [4, 0, 0, 1, 6, 14, 0, 3]
    with torch.inference_mode():
        assert reduce_into(row, torch.arange(2))
    assert cells.read([row])[0, 0] == 2


def test_defaults_for_new_tensors_do_not_reach_the_rows(monkeypatch):
    torch.set_default_dtype(torch.float16)
    try:
        with torch.device("meta"):
            cells = Cells("cpu")
            row = cells.row()
            assert reduce_into(row, torch.arange(4, device="cpu"))
    finally:
        torch.set_default_dtype(torch.float32)
    assert cells.read([row])[0, 4] == 6
    assert row.view.dtype is torch.float64
