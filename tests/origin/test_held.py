"""What naming the origin holds of a training: references, for as long as they may be needed, and little of its own."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._watch._locating import MAX_FORWARDS

pytestmark = pytest.mark.slow

BIG = 1 << 20  # elements of a batch: 4 MiB


def alive(batches: list[weakref.ref[torch.Tensor]]) -> list[int]:
    gc.collect()
    return [number for number, ref in enumerate(batches) if ref() is not None]


def storages() -> int:
    """Bytes of all tensors that Python can reach."""
    gc.collect()
    found = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in gc.get_objects()
        if type(t) is torch.Tensor and t.layout is torch.strided
    }
    return sum(found.values())


class Small(nn.Module):
    """Few parameters, whatever the batch; a buffer that is too large to be copied while it does not change."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("table", torch.ones(BIG))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.table).mean() * self.scale


@pytest.mark.parametrize("every", [1, None])
def test_a_batch_is_let_go_when_its_backward_is_over(every: int | None) -> None:
    model = Small()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = []
    with hs.watch(model, sgd, every=every):
        for _ in range(4):
            x = torch.randn(BIG)
            batches.append(weakref.ref(x))
            model(x).backward()
            del x
            assert alive(batches) == []
            sgd.step()


def test_of_forwards_that_no_backward_comes_to_the_latest_few_are_held() -> None:
    model = Small()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = []
    with hs.watch(model, sgd):
        for _ in range(3 * MAX_FORWARDS):
            x = torch.randn(1024, BIG // 1024).reshape(-1)
            batches.append(weakref.ref(x))
            model(x)
            del x
        assert len(alive(batches)) <= MAX_FORWARDS
        assert alive(batches) == [*range(2 * MAX_FORWARDS, 3 * MAX_FORWARDS)][-len(alive(batches)) :]
    assert alive(batches) == []


def test_nothing_large_is_copied_within_a_step() -> None:
    model = Small()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(BIG)
    model(x).backward()
    before = storages()
    with hs.watch(model, sgd, every=1):
        for _ in range(3):
            sgd.zero_grad()
            loss = model(x)
            held = storages() - before
            loss.backward()
            sgd.step()
    assert held < BIG  # bytes: a quarter of the batch, of which there is still one
