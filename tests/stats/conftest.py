"""Oracles for statistics: Python's own floats and exact summation, one element at a time; and every way there is to reduce."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from hookscope._core._stats import Stats
from hookscope._stats import Cells, _reduce, reduce_into
from hookscope._stats._backend import KERNEL

Oracle = Callable[[list[float]], Stats]
LEVELS = [*(KERNEL.levels() if KERNEL else ()), "torch"]


def expected(values: list[float]) -> Stats:
    """The eight stats by definition."""
    finite = [v for v in values if math.isfinite(v)]
    numbers = [v for v in values if not math.isnan(v)]
    return Stats(
        len(values),
        sum(math.isnan(v) for v in values),
        sum(math.isinf(v) for v in values),
        sum(v == 0 for v in values),
        math.fsum(finite),
        math.fsum(v * v for v in finite),
        min(numbers, default=math.inf),
        max(numbers, default=-math.inf),
    )


class Reduced:
    """What one backend made of a tensor, compared with the definition."""

    def __init__(self) -> None:
        self.cells = Cells("cpu")
        self.row = self.cells.row()

    def __call__(self, tensor: torch.Tensor) -> Stats:
        self.row.view.fill_(-77.0)
        assert reduce_into(self.row, tensor)
        return Stats(*self.cells.read([self.row])[0].tolist())

    def check(self, tensor: torch.Tensor, values: list[float] | None = None) -> None:
        if values is None:
            values = tensor.detach().to(torch.float64).flatten().tolist()
        want, got = expected(values), self(tensor)
        assert got[:4] == want[:4]
        assert got[6:] == want[6:]
        size = math.fsum(abs(v) for v in values if math.isfinite(v))
        np.testing.assert_allclose(got.sum, want.sum, rtol=0, atol=1e-12 * size)
        np.testing.assert_allclose(got.sumsq, want.sumsq, rtol=1e-12, atol=1e-300)  # squares of float64 below 1e-150 are rounded coarsely


@pytest.fixture(params=LEVELS)
def reduced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reduced]:
    """Each instruction set usable here, and torch operations."""
    if request.param == "torch":
        monkeypatch.setattr(_reduce, "_CODES", {})
        yield Reduced()
        return
    fastest = KERNEL.level()
    KERNEL.use(request.param)
    yield Reduced()
    KERNEL.use(fastest)
