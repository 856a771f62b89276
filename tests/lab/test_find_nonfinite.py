"""`find_nonfinite`: one batch at hand, and the operation at which it goes bad."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import hookscope as hs


class Root(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sqrt()


class Norm(nn.Module):
    """BatchNorm and dropout before the fault: buffers and random numbers are used."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop, self.root = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), Root()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.root(self.drop(self.norm(self.linear(x))) + 0.0 * random.random() + float(np.random.rand()) * 0)  # noqa: NPY002  # ditto


def total(model: nn.Module, x: Any) -> torch.Tensor:
    return model(x).sum()  # type: ignore[no-any-return]


def test_a_forward_is_named_with_module_line_operands_and_samples() -> None:
    x = torch.tensor([[4.0], [-9.0], [1.0]])
    verdict = hs.find_nonfinite(nn.Sequential(nn.Identity(), Root()), x, total)
    assert verdict is not None
    assert (verdict.op, verdict.direction, verdict.module, verdict.result, verdict.samples) == ("sqrt", "forward", "1", "NaN", (1,))
    assert verdict.code == "return x.sqrt()"
    assert not verdict.outside
    (operand,) = verdict.operands
    assert (operand.min, operand.max, operand.shape, operand.dtype) == (-9.0, 4.0, (3, 1), "float32")


def test_a_backward_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), Root())
    verdict = hs.find_nonfinite(model, torch.zeros(3, 2), total)
    assert verdict is not None
    assert (verdict.op, verdict.direction, verdict.module, verdict.code) == ("sqrt", "backward", "1", "return x.sqrt()")


def test_a_fault_in_the_loss_is_outside_the_model() -> None:
    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return cross_entropy(model(batch[0]), batch[1])

    verdict = hs.find_nonfinite(nn.Linear(2, 3), (torch.ones(4, 2), torch.full((4,), -100)), loss)
    assert verdict is not None
    assert (verdict.op, verdict.function, verdict.module, verdict.outside) == ("nll_loss_forward", "cross_entropy", None, True)


def test_what_is_finite_has_no_verdict_and_a_mask_is_no_fault() -> None:
    def masked(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).masked_fill(torch.arange(3) == 0, -math.inf).softmax(-1).square().sum()  # type: ignore[no-any-return]

    assert hs.find_nonfinite(nn.Linear(2, 3), torch.ones(4, 2), total) is None
    assert hs.find_nonfinite(nn.Linear(2, 3), torch.ones(4, 2), masked) is None


def test_everything_is_afterwards_what_it_was() -> None:
    model = Norm()
    gradients = [torch.ones_like(p) for p in model.parameters()]
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        p.grad = gradient
    buffers = [b.clone() for b in model.buffers()]
    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002  # the global generator is what must be put back
    verdict = hs.find_nonfinite(model, torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), total)
    assert verdict is not None
    assert (verdict.op, verdict.module) == ("sqrt", "root")
    assert all(p.grad is gradient and bool((gradient == 1).all()) for p, gradient in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(now, before) for now, before in zip(model.buffers(), buffers, strict=True))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state
    assert np.random.get_state()[1].tolist() == numpy_state  # type: ignore[index]  # noqa: NPY002  # as above
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.parametrize("reentrant", [True, False])
def test_inside_a_checkpoint_it_is_named_too(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.root = nn.Linear(2, 2, bias=False), Root()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = checkpoint(self.root, self.first(x), use_reentrant=reentrant)
            return out

    model = Checkpointed()
    verdict = hs.find_nonfinite(model, torch.zeros(3, 2), total)
    assert verdict is not None
    assert (verdict.op, verdict.direction, verdict.module) == ("sqrt", "backward", "root")
    assert [p.grad for p in model.parameters()] == [None]


def test_what_loss_fn_raises_comes_out_and_nothing_is_left() -> None:
    def broken(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        model(x)
        raise KeyError("target")

    model = Norm()
    before = [b.clone() for b in model.buffers()]
    with pytest.raises(KeyError, match="target"):
        hs.find_nonfinite(model, torch.randn(4, 3), broken)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), before, strict=True))
    assert torch._C._len_torch_dispatch_stack() == 0
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_wrong_use_is_told() -> None:
    with pytest.raises(hs.AttachError, match=r"model is a str, not a torch.nn.Module"):
        hs.find_nonfinite("net", torch.ones(1), total)  # type: ignore[arg-type]
    with pytest.raises(hs.UsageError, match="loss_fn returned a float, not a tensor"):
        hs.find_nonfinite(nn.Linear(1, 1), torch.ones(1), lambda model, x: 1.0)  # type: ignore[arg-type,return-value]


def test_several_losses_and_nothing_to_train_are_no_trouble() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Root())
    assert hs.find_nonfinite(model.requires_grad_(False), torch.ones(1, 2) * 0, lambda m, x: (m(x) * 0 - 1).log()) is not None
    verdict = hs.find_nonfinite(nn.Linear(2, 2), torch.ones(3, 2), lambda m, x: (m(x) * 0 - 1).log())
    assert verdict is not None
    assert verdict.op == "log"
