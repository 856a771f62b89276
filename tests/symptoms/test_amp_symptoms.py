"""What people report of mixed precision under a hook, and what a watched training does instead. Numbers are those of pytorch's issues."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hookscope as hs

from ._watching import X, norm, seeded

BF16 = partial(torch.autocast, "cpu", dtype=torch.bfloat16)


def scaler(scale: float) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale)


def test_a_step_that_the_scaler_skips_is_said_to_be_skipped_and_has_its_bad_gradients() -> None:
    """55585, 67590: the optimizer is not called, its hooks are not either, and the scaler keeps it to itself."""
    model = seeded(nn.Linear(6, 1))
    optimizer, scaling = torch.optim.SGD(model.parameters(), lr=0.1), scaler(8.0)
    with hs.watch(model, optimizer, on_finding="ignore") as w:
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaling.scale(model(X * factor).sum()).backward()
            scaling.step(optimizer)
            scaling.update()
    assert w.run.steps.tolist() == [0, 1, 2]
    assert w.run["skipped"].steps.tolist() == [1]
    assert [event["step"] for event in w.run.events if event["event"] == "skipped"] == [1]
    assert (w.run["0.weight:param_grad", "nonfinite"].values > 0).tolist() == [False, True, False]
    assert w.run["loss_scale"].values.tolist() == [8.0, 8.0, 4.0]


def test_two_scalers_are_each_taken_out_of_the_gradients_of_their_own_loss() -> None:
    """55585: a factor of 2 ** 16 too much, or of one network in the gradients of the other."""
    one, other = seeded(nn.Linear(6, 1)), seeded(nn.Linear(6, 1))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.0) for model in (one, other)]
    scalers = [scaler(4.0), scaler(1024.0)]
    with hs.watch({"one": one, "other": other}, optimizers) as w:
        for _ in range(2):
            for model, optimizer, scaling in zip((one, other), optimizers, scalers, strict=True):
                optimizer.zero_grad()
                scaling.scale(model(X).sum()).backward()
                scaling.step(optimizer)
                scaling.update()
    for name in ("one", "other"):
        assert w.run[f"{name}.0:output_grad", "l2"].values.tolist() == pytest.approx([2.0, 2.0])
        assert w.run[f"{name}.0.weight:param_grad", "l2"].values.tolist() == pytest.approx([norm(X.sum(0))] * 2)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_an_optimizer_is_copied_and_pickled_in_the_midst_of_a_watch(
    duplicate: Callable[[torch.optim.Optimizer], torch.optim.Optimizer],
) -> None:
    """Hooks on it would go with it, or keep it from going."""
    model = seeded(nn.Linear(6, 1))
    optimizer = torch.optim.Adam(model.parameters())
    with hs.watch(model, optimizer):
        model(X).sum().backward()
        optimizer.step()
        copied = duplicate(optimizer)
    assert str(copied.state_dict()) == str(optimizer.state_dict())
    assert not copied._optimizer_step_pre_hooks
    assert not copied._optimizer_step_post_hooks


class Evaluated(nn.Module):
    """Uses its layer once without a gradient, then with one: the second use is given the first one's copy in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = seeded(nn.Linear(6, 6))[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = self.layer(x)
        return (self.layer(x) - 2 * target).square().mean()


def gradient(model: nn.Module, loss: Callable[[], torch.Tensor], *, watched: bool) -> torch.Tensor:
    w = hs.watch(model) if watched else None
    with BF16():
        value = loss()
    value.backward()
    if w is not None:
        w.close()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_weights_that_autocast_has_cast_once_keep_their_graph() -> None:
    """105211, 112583: what is first used without a gradient has none later, for a copy is kept; a hook must not be the first use."""
    found = [gradient(model := Evaluated(), partial(model, X), watched=watched) for watched in (False, True)]
    assert torch.equal(*found)
    assert norm(found[1]) > 0


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_under_autocast_finds_the_same_tensors_in_its_recomputation(reentrant: bool) -> None:
    """141896: one operation more in the first pass than in the second is an error, or a wrong gradient."""

    def run(*, watched: bool) -> torch.Tensor:
        model = seeded(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 2))
        again = partial(checkpoint, model, X.clone().requires_grad_(), use_reentrant=reentrant)
        return gradient(model, lambda: again().float().square().mean(), watched=watched)

    assert torch.equal(run(watched=True), run(watched=False))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_overflow_are_left_as_they_are_for_the_scaler_to_find(set_to_none: bool) -> None:
    """Looking for where they come from runs the loop's own operations again: none of them, `zero_grad` above all, may write anew."""
    model = seeded(nn.Linear(6, 1))
    optimizer, scaling = torch.optim.SGD(model.parameters(), lr=0.1), scaler(8.0)
    average = torch.zeros(1)
    norms = []
    with hs.watch(model, optimizer, on_finding="ignore"):
        for factor in (1.0, float("inf")):
            optimizer.zero_grad(set_to_none=set_to_none)
            output = model(X).square().mean()
            average.mul_(0.5).add_(output.detach())
            kept = average.clone()
            scaling.scale((output * average * factor).sum()).backward()
            norms.append([norm(p.grad) for p in model.parameters() if p.grad is not None])
            assert torch.equal(average, kept)
            scaling.step(optimizer)
            scaling.update()
    assert all(value > 0 and torch.isfinite(torch.tensor(value)) for value in norms[0])
    assert not any(torch.isfinite(torch.tensor(value)) for value in norms[1])
