"""The same parameters again and again: the rows of a batch, and nothing where one of them has moved."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hookscope._stats import Batch, Repeated, sampled_job
from hookscope._stats._backend import KERNEL

pytestmark = pytest.mark.skipif(KERNEL is None, reason="the native kernel was not built")


def prepared(parameters: list[nn.Parameter], runs: tuple[int, int]) -> Repeated:
    samples = [torch.zeros(max(1, (p.numel() - runs[0]) // runs[1] + 1) * runs[0], dtype=p.dtype) for p in parameters]
    jobs = [sampled_job(p, runs, sample) for p, sample in zip(parameters, samples, strict=True)]
    return Repeated([job for job in jobs if job is not None], samples)


def sampled(p: torch.Tensor, runs: tuple[int, int]) -> np.ndarray:
    flat = p.detach().double().numpy().reshape(-1)
    return np.concatenate([flat[i : i + runs[0]] for i in range(0, len(flat) - runs[0] + 1, runs[1])])


@given(
    st.lists(st.tuples(st.sampled_from([torch.float32, torch.float64]), st.integers(8, 30_000)), min_size=1, max_size=4),
    st.sampled_from([(1, 1), (8, 8), (8, 9), (8, 37), (4, 11)]),
)
def test_values_are_those_of_a_batch_and_changes_those_of_the_sample(kinds: list[tuple[torch.dtype, int]], runs: tuple[int, int]) -> None:
    draw = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(n, generator=draw, dtype=dtype)) for dtype, n in kinds]
    repeated, batch = prepared(parameters, runs), Batch()
    assert all(batch.add(p) for p in parameters)
    values, before = repeated.read(parameters, change=False), [sampled(p, runs) for p in parameters]
    assert values is not None
    assert values.tolist() == batch.read().tolist()
    with torch.no_grad():
        for p in parameters:
            p.add_(torch.randn(p.shape, generator=draw, dtype=p.dtype), alpha=0.1)
    changes = repeated.read(parameters, change=True)
    assert changes is not None
    for row, p, then in zip(changes, parameters, before, strict=True):
        exact = (torch.tensor(sampled(p, runs), dtype=p.dtype) - torch.tensor(then, dtype=p.dtype)).double().numpy()
        assert row[:4].tolist() == [len(exact), 0, 0, np.count_nonzero(exact == 0)]
        np.testing.assert_allclose(row[4:6], [exact.sum(), np.square(exact).sum()], rtol=1e-12, atol=1e-9)
        assert row[6:].tolist() == [exact.min(), exact.max()]


@pytest.mark.parametrize("moved", ["other memory", "fewer elements", "another dtype"])
def test_a_parameter_that_is_not_what_it_was_is_not_read(moved: str) -> None:
    p, q = nn.Parameter(torch.ones(100)), nn.Parameter(torch.ones(100))
    repeated, memory = prepared([p, q], (1, 1)), q.data
    assert repeated.read([p, q], change=False) is not None
    q.data = {"other memory": memory.clone(), "fewer elements": memory[:50], "another dtype": memory.view(torch.float16)[:100]}[moved]
    assert repeated.read([p, q], change=False) is None
    q.data = memory
    assert repeated.read([p, q], change=True) is not None
