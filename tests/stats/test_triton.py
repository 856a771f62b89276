"""The kernels for GPUs against the definition in Python's floats: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

triton = pytest.importorskip("triton", reason="Triton is not installed")
if not torch.cuda.is_available():
    pytest.importorskip("triton", minversion="3.9", reason="the interpreter of an older Triton cannot run with the NumPy of today")

from hookscope._core._stats import Stats  # noqa: E402  # only where there is Triton
from hookscope._stats import _launch  # noqa: E402

ON = "cuda" if torch.cuda.is_available() else "cpu"
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
BITS = {torch.float32: np.int32, torch.float64: np.int64, torch.float16: np.int16, torch.bfloat16: np.int16}
few = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


def expected(values: list[float]) -> Stats:
    finite, numbers = [v for v in values if math.isfinite(v)], [v for v in values if not math.isnan(v)]
    counts = len(values), sum(map(math.isnan, values)), sum(map(math.isinf, values)), sum(v == 0 for v in values)
    sums = math.fsum(finite), math.fsum(v * v for v in finite)
    return Stats(*counts, *sums, min(numbers, default=math.inf), max(numbers, default=-math.inf))


def check(row: torch.Tensor, tensor: torch.Tensor) -> None:
    values = tensor.double().flatten().tolist()
    got, want = Stats(*row.tolist()), expected(values)
    assert (got[:4], got[6:]) == (want[:4], want[6:])
    np.testing.assert_allclose(got.sum, want.sum, rtol=0, atol=1e-12 * math.fsum(abs(v) for v in values if math.isfinite(v)))
    np.testing.assert_allclose(got.sumsq, want.sumsq, rtol=1e-12, atol=1e-300)


def one(tensor: torch.Tensor) -> torch.Tensor:
    row = torch.full((8,), -77.0, dtype=torch.float64, device=ON)
    _launch.reduce_one(row, tensor)
    return row


def sample(n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    x[::7], x[3::11], x[5::13], x[6::17], x[2::19] = -0.0, math.nan, math.inf, -math.inf, 1e-40
    return x.to(dtype).to(ON)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("n", [0, 1, 2, 1023, 1024, 1025, 16383, 16384, 16385, 99_999])
def test_every_length_around_a_block_or_span_is_right(n, dtype):
    check(one(sample(n, dtype)), sample(n, dtype))


@few
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_any_bit_pattern_is_right(data, dtype):
    kind = np.dtype(BITS[dtype])
    patterns = data.draw(st.binary(max_size=40 * kind.itemsize).map(lambda b: b[: len(b) // kind.itemsize * kind.itemsize]))
    tensor = torch.from_numpy(np.frombuffer(patterns, kind).copy()).view(dtype)
    tensor = tensor.clamp(-1e150, 1e150) if dtype is torch.float64 else tensor
    check(one(tensor.to(ON)), tensor)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_half_precision_number_is_read_as_it_is(dtype):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    check(one(every.to(ON)), every)


@pytest.mark.parametrize("value", [1e30, 3e38, 1e-25, 1e-38, 1e-45])
def test_squares_beyond_what_float32_holds_are_right(value):
    stored = float(np.float32(value))
    assert one(torch.full((5000,), value, device=ON))[5].item() == pytest.approx(5000 * stored * stored, rel=1e-12)


def test_a_sum_that_cancels_keeps_its_small_remainder():
    assert one(torch.tensor([1e8, 1.0, -1e8] * 9000, device=ON))[4] == 9000.0


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_smallest_numbers_are_read_as_they_are(dtype):
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    check(one(torch.tensor([tiny, 2 * tiny], dtype=torch.float64).to(dtype).to(ON)), torch.tensor([tiny, 2 * tiny], dtype=torch.float64))


def test_one_odd_value_is_counted_wherever_it_stands():
    for odd in (math.nan, math.inf, -math.inf, -0.0):
        for place in (0, 1023, 1024, 2047, 2048, 2999):
            tensor = torch.linspace(1, 2, 3000)
            tensor[place] = odd
            check(one(tensor.to(ON)), tensor)


def test_a_list_of_all_sizes_and_dtypes_is_as_if_each_were_alone():
    sizes = [0, 1, 3, 40_000, 1024, 5, 0, 16_385, 7]
    tensors = [sample(n, dtype) for n in sizes for dtype in (torch.float32, torch.bfloat16)] + [
        sample(9, torch.float64),
        sample(2000, torch.half),
    ]
    cells = torch.full((len(tensors), 8), -77.0, dtype=torch.float64, device=ON)
    order = list(reversed(range(len(tensors))))  # rows need not be neighbours, nor in order
    _launch.reduce_list([cells[i] for i in order], tensors)
    for i, tensor in zip(order, tensors, strict=True):
        check(cells[i], tensor)
        assert torch.equal(cells[i], one(tensor))


def test_a_list_follows_tensors_that_have_moved_or_begin_at_an_odd_address():
    tensors = [sample(2000), sample(50)]
    cells = torch.empty(2, 8, dtype=torch.float64, device=ON)
    for moved in (tensors, [t.clone() for t in tensors], [t[1:] for t in tensors], [t * 2 for t in tensors]):
        _launch.reduce_list(list(cells), moved)
        for row, tensor in zip(cells, moved, strict=True):
            check(row, tensor)


def test_no_tensor_at_all_is_no_launch():
    _launch.reduce_list([], [])


def test_the_same_tensor_gives_the_same_bits():
    x = torch.randn(70_000, device=ON)
    first = one(x)
    assert all(torch.equal(one(x), first) for _ in range(3))


@few
@given(cuts=st.lists(st.integers(0, 3000), max_size=6), dtype=st.sampled_from(FLOATS))
def test_the_rows_of_any_split_merge_to_that_of_the_whole(cuts, dtype):
    x = sample(3000, dtype)
    edges = [0, *sorted(cuts), 3000]
    pieces = [x[a:b] for a, b in pairwise(edges)]
    cells = torch.empty(len(pieces), 8, dtype=torch.float64, device=ON)
    _launch.reduce_list(list(cells), pieces)
    merged = Stats(*cells[0].tolist())
    for row in cells[1:]:
        merged = merged.merge(Stats(*row.tolist()))
    whole = one(x).tolist()
    assert (list(merged[:4]), list(merged[6:])) == (whole[:4], whole[6:])
    np.testing.assert_allclose(merged[4:6], whole[4:6], rtol=1e-12, atol=1e-9)
