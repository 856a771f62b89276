"""One tensor read by the kernel as it is: right numbers, and a refusal where somebody else has to read it."""

from __future__ import annotations

import pytest
import torch

from hookscope._stats import Cells, read_plain, reduce_into
from hookscope._stats._backend import KERNEL
from hookscope._stats._plain import FLOATS

pytestmark = pytest.mark.skipif(KERNEL is None, reason="the native kernel was not built")

CODES = {dtype: code for code, dtype in enumerate(FLOATS)}


class Unlike(torch.Tensor):
    """As in a torch that knows nothing of DLPack's exchange protocol."""

    __dlpack_c_exchange_api__ = None


def read(tensor: torch.Tensor, *, exchange: bool) -> list[float] | None:
    row = Cells("cpu").row()
    if exchange:
        done = read_plain(row, tensor)
    else:
        assert KERNEL is not None
        done = KERNEL.read(tensor.as_subclass(Unlike), Unlike, CODES, row.pointer)
    assert row.host is not None
    return row.host.tolist() if done else None


def oracle(tensor: torch.Tensor) -> list[float]:
    x = tensor.detach().double().flatten()
    fine = x[torch.isfinite(x)]
    kept = x[~torch.isnan(x)]
    counts = [x.numel(), x.isnan().sum(), x.isinf().sum(), (x == 0).sum()]
    return [float(v) for v in (*counts, fine.sum(), (fine * fine).sum(), kept.min(), kept.max())]


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
def test_it_has_the_stats_of_torch_in_float64(dtype: torch.dtype, exchange: bool) -> None:
    x = torch.arange(-40, 41).to(dtype).reshape(9, 9) / 8
    x[0, 0], x[1, 1] = float("nan"), float("inf")
    for tensor in (x, x[3:], x[:, None], x.reshape(-1)[5:6], x.clone().requires_grad_()):
        assert read(tensor, exchange=exchange) == pytest.approx(oracle(tensor))


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3, 4).T,
        torch.ones(1).expand(5),
        torch.ones(6)[::2],
        torch.ones(0, 3),
        torch.ones(3, dtype=torch.int64),
        torch.ones(3, dtype=torch.cfloat),
        torch.ones(3, device="meta"),
        torch._neg_view(torch.ones(3)),
    ],
)
def test_what_is_not_contiguous_floats_in_memory_is_refused(tensor: torch.Tensor, exchange: bool) -> None:
    assert read(tensor, exchange=exchange) is None


def test_a_sparse_tensor_is_refused() -> None:
    assert read(torch.ones(3).to_sparse(), exchange=True) is None


@pytest.mark.parametrize("exchange", [True, False])
def test_memory_that_was_freed_is_not_read(exchange: bool) -> None:
    tensor = torch.ones(64)
    tensor.untyped_storage().resize_(0)
    assert read(tensor, exchange=exchange) is None


def test_a_subclass_is_refused_and_nothing_is_written() -> None:
    row = Cells("cpu").row()
    assert reduce_into(row, torch.ones(2))
    assert not read_plain(row, torch.zeros(3).as_subclass(Unlike))
    assert row.host is not None
    assert row.host[0] == 2


def test_a_tensor_inside_a_transform_is_refused() -> None:
    row, done = Cells("cpu").row(), []

    def seen(x: torch.Tensor) -> torch.Tensor:
        done.append(read_plain(row, x))
        return x

    torch.func.vmap(seen)(torch.ones(3, 2))
    assert done == [False]
