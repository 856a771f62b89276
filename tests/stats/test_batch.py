"""Many tensors in one call: the same numbers as one at a time, a sample taken on the way, what has changed in it since."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookscope._stats import Batch, Cells, change_job, reduce_into, sampled_job
from hookscope._stats._backend import KERNEL

pytestmark = pytest.mark.skipif(KERNEL is None, reason="the native kernel was not built")
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def alone(tensor: torch.Tensor) -> np.ndarray:
    cells = Cells("cpu")
    row = cells.row()
    assert reduce_into(row, tensor)
    return cells.read([row])[0]


def normal(n: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(st.lists(st.tuples(st.sampled_from(FLOATS), st.integers(0, 20_000)), max_size=6))
def test_rows_equal_those_of_single_tensors_bit_for_bit(kinds: list[tuple[torch.dtype, int]]) -> None:
    tensors = [normal(n, dtype, i) for i, (dtype, n) in enumerate(kinds)]
    batch = Batch()
    assert all(batch.add(tensor) for tensor in tensors)
    rows = batch.read()
    assert rows.shape == (len(tensors), 8)
    for row, tensor in zip(rows, tensors, strict=True):
        assert row.tolist() == alone(tensor).tolist()


def test_totals_count_what_is_not_finite_and_add_the_squares_of_the_rest() -> None:
    batch = Batch()
    for values in ([1.0, float("nan")], [2.0, float("inf"), float("-inf")], [3.0]):
        batch.add(torch.tensor(values))
    batch.read()
    assert batch.total == (3.0, 14.0)


@pytest.mark.parametrize("tensor", [torch.arange(3), torch.randn(4, 4)[:, ::2], torch.randn(3).to_sparse(), torch.empty(2, device="meta")])
def test_what_the_kernel_cannot_read_where_it_lies_is_refused(tensor: torch.Tensor) -> None:
    batch = Batch()
    assert not batch.add(tensor)
    assert len(batch) == 0


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("runs", [(1, 1), (8, 8), (8, 37), (3, 11)])
@given(n=st.integers(8, 9000), seed=st.integers(0, 5))
def test_a_sample_holds_the_whole_runs_and_the_change_is_what_happened_to_them(
    dtype: torch.dtype, runs: tuple[int, int], n: int, seed: int
) -> None:
    run, stride = runs
    tensor = normal(n, dtype, seed)
    places = [i + j for i in range(0, n - run + 1, stride) for j in range(run)]
    sample = torch.zeros(len(places), dtype=dtype)
    job = sampled_job(tensor, runs, sample)
    assert job is not None
    batch = Batch()
    batch.again(tensor, job)
    assert batch.read()[0].tolist() == alone(tensor).tolist()
    assert torch.equal(sample, tensor[places])

    before = sample.clone()
    tensor.add_(normal(n, dtype, seed + 1) * 0.1)
    batch.again(tensor, change_job(job, sample))
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    expected = alone(tensor[places].to(wide) - before.to(wide))
    np.testing.assert_allclose(batch.read()[0], expected, rtol=1e-12, atol=1e-300)
    assert torch.equal(sample, before)


def test_a_tensor_made_for_the_call_alone_lives_until_it_is_read() -> None:
    batch = Batch()
    for i in range(200):
        batch.add(torch.full((1000,), float(i)))
    assert batch.read()[:, 6].tolist() == [float(i) for i in range(200)]


def test_wrong_jobs_are_refused_by_the_kernel() -> None:
    assert KERNEL is not None
    rows = np.empty((1, 8))
    with pytest.raises(TypeError, match="7 integers"):
        KERNEL.reduce_many([1, 2, 3], rows.ctypes.data)
    with pytest.raises(ValueError, match="job 0"):
        KERNEL.reduce_many([9, 0, 0, 1, 1, 0, 0], rows.ctypes.data)
    with pytest.raises(ValueError, match="job 0"):
        KERNEL.reduce_many([0, 0, 4, 1, 1, 0, 0], rows.ctypes.data)
