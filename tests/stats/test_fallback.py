"""Statistics in torch operations: in one piece, in chunks, and inside a compiled graph."""

from __future__ import annotations

import math

import pytest
import torch

from hookscope._stats import stats_of
from hookscope._stats._fallback import CPU_CHUNK, DEVICE_CHUNK, stats_in_chunks


def _sprinkled(n: int) -> torch.Tensor:
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    x[::7], x[3::11], x[5::13], x[6::17] = 0.0, math.nan, math.inf, -math.inf
    return x


@pytest.mark.parametrize("n", [CPU_CHUNK - 1, CPU_CHUNK, CPU_CHUNK + 1, 3 * CPU_CHUNK])
def test_chunks_give_the_numbers_of_one_piece(n):
    torch.testing.assert_close(stats_in_chunks(_sprinkled(n)), stats_of(_sprinkled(n)), rtol=1e-12, atol=1e-9)


def test_sums_are_made_in_the_dtype_asked_for():
    assert stats_of(torch.ones(3), torch.float32).dtype is torch.float32
    assert stats_of(torch.full((3,), 1e30)).sum() == pytest.approx(3e60, rel=1e-6)


def test_nothing_is_read_back_from_a_device():
    for tensor in (torch.ones(3, device="meta"), torch.ones(DEVICE_CHUNK + 1, device="meta"), torch.ones(0, device="meta")):
        cells = stats_in_chunks(tensor)  # reading a value of a meta tensor raises
        assert (cells.device.type, cells.dtype, cells.shape) == ("meta", torch.float64, (8,))


def test_one_graph_without_breaks_gives_the_eager_numbers():
    compiled = torch.compile(stats_of, backend="aot_eager", fullgraph=True)
    for tensor in (_sprinkled(100).reshape(4, 25).T, _sprinkled(50).half(), torch.arange(5), torch.empty(0)):
        torch.testing.assert_close(compiled(tensor), stats_of(tensor), rtol=1e-12, atol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_fused_kernel_counts_the_half_precision_values_that_are_stored():
    def product(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * x
        return y, stats_of(y)

    x = torch.logspace(-6, 4, 500).half()
    stored, fused = torch.compile(product, fullgraph=True)(x)
    torch.testing.assert_close(fused, stats_of(stored), rtol=1e-12, atol=0)
    assert fused[2] > 0, "some squares overflow float16"
    assert fused[3] > 0, "some squares underflow float16"
