"""Checkpoints inside compiled graphs and around compiled blocks leave the numbers of an eager run without a checkpoint, once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from ._compiling import How, assert_same, by_blocks, same_bits, together, tower, train, whole

pytestmark = [
    pytest.mark.slow,  # dynamo takes seconds
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),  # torch's own, of a block that is given a non-leaf
]


@pytest.fixture(autouse=True)
def _nothing_compiled_is_left() -> Iterator[None]:
    yield
    torch._dynamo.reset()


KINDS_OF_CHECKPOINT: dict[str, dict[str, Any]] = {
    "plain": {"use_reentrant": False},
    "reentrant": {"use_reentrant": True},
    "selective": {"use_reentrant": False, "context_fn": partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])},
}


class Checkpointed(nn.Module):
    """Calls a block twice."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.inner, self.head, self.kind = nn.Linear(8, 8), tower(1)[1], nn.Linear(8, 2), KINDS_OF_CHECKPOINT[kind]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.inner, x, **self.kind)
        out: torch.Tensor = self.head(x)
        return out


@pytest.mark.parametrize("kind", KINDS_OF_CHECKPOINT)
@pytest.mark.parametrize("how", [whole, by_blocks])
def test_a_checkpoint_that_runs_a_forward_again_leaves_its_numbers_once(how: How, kind: str) -> None:
    batches = [torch.linspace(-1, 1, 40, dtype=torch.float64).reshape(5, 8)] * 2
    eager = train(lambda: Checkpointed(kind).double(), batches)
    compiled = train(lambda: Checkpointed(kind).double(), batches, how)
    assert_same(together(compiled.rows), together(eager.rows))
    assert same_bits(compiled.model, eager.model)
