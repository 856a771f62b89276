"""Under activation checkpointing a forward is edited again in its recompute, in the same way: gradients equal those without it."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hookscope as hs

from ._hand import assert_same, batch


class Stack(nn.Module):
    """Blocks that share one layer, each of them checkpointed on demand; nested, the whole stack is once more."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        self.shared = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.2)) for _ in range(3))
        self.double()

    def again(self, fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        if self.how == "none":
            return fn(x)
        return checkpoint(fn, x, use_reentrant=self.how.removeprefix("nested ") == "reentrant")

    def block(self, i: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: self.shared(torch.sin(self.shared(self.blocks[i](x))))

    def all(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(3):
            x = self.again(self.block(i), x)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(self.all, x) if self.how.startswith("nested") else self.all(x)


EDITS = {
    "scale": {"blocks.1": hs.scale(0.5)},
    "input": {"shared:input": hs.clamp(-0.5, 0.5)},
    "noise": {"shared": hs.noise(0.3, seed=1), "blocks.*.0:input": hs.noise(0.2)},
    "calls": {"shared": hs.scale(2.0).at(calls=[1, 4]), "shared@2": hs.add(1.0), "shared:output_grad": hs.scale(3.0).at(calls=3)},
    "steps": {"shared": hs.zero().at(steps=1, calls=0), "blocks.0": hs.noise(1.0).at(steps=0)},
    "gradient": {"blocks.0.0:output_grad": hs.scale(0.1), "shared.weight:param_grad": hs.scale(2.0)},
    "patch": {"shared": hs.patch([batch(5, 4, seed=i) for i in range(6)]).at(units=[0, 2])},
}
# torch's own warning of a re-entrant checkpoint within another one, whose first run has no gradients
pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
HOW = ["non-reentrant", "reentrant", "nested non-reentrant", "nested reentrant"]


def gradients(how: str, edits: dict, *, retain: bool = False) -> dict[str, torch.Tensor]:
    """Two forwards of two batches, one backward of both; what each edit acts on depends on which of them it is."""
    model = Stack(how)
    x, y = batch().requires_grad_(), batch(seed=2).requires_grad_()
    torch.manual_seed(9)
    with hs.edit(model, edits):
        loss = model(x).pow(2).sum() + model(y).pow(3).sum()
        if retain:
            loss.backward(retain_graph=True)
            loss.backward()
        else:
            loss.backward()
    return {"loss": loss.detach(), "x": x.grad, "y": y.grad, **{n: p.grad for n, p in model.named_parameters()}}


@pytest.mark.parametrize("case", EDITS)
@pytest.mark.parametrize("how", HOW)
def test_gradients_under_checkpointing_equal_those_without_it(how: str, case: str) -> None:
    plain, unedited = gradients("none", EDITS[case]), gradients("none", {"blocks.1": hs.scale(1.0)})
    assert any(not torch.equal(plain[name], unedited[name]) for name in plain)
    if "reentrant" in how.split() and case == "gradient":
        plain.pop("shared.weight")  # a shared parameter receives its parts one by one, but scaling them is scaling their sum
    edited = gradients(how, EDITS[case])
    assert_same(plain, {name: edited[name] for name in plain})


@pytest.mark.parametrize("case", ["noise", "calls"])
def test_a_graph_that_is_retained_is_run_again_with_the_same_calls(case: str) -> None:
    once = gradients("non-reentrant", EDITS[case])
    twice = gradients("non-reentrant", EDITS[case], retain=True)
    assert_same({n: 2 * v if n != "loss" else v for n, v in once.items()}, twice)


@pytest.mark.parametrize("how", HOW)
def test_closing_before_the_backward_is_warned_of(how: str) -> None:
    model = Stack(how)
    e = hs.edit(model, {"blocks.1": hs.scale(0.5)})
    loss = model(batch().requires_grad_()).sum()
    with pytest.warns(hs.HookscopeWarning, match="the edit is off before the backward of a checkpointed forward"):
        e.close()
    del loss


@pytest.mark.parametrize("how", ["none", *HOW])
def test_no_warning_where_the_backward_is_done_or_will_never_be(how: str) -> None:
    model, x = Stack(how), batch().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "None of the inputs have requires_grad=True")
        with hs.edit(model, {"blocks.1": hs.scale(0.5)}):
            loss = model(x).sum()
            loss.backward()
        with hs.edit(model, {"blocks.1": hs.scale(0.5)}), torch.no_grad():
            model(x)
        with hs.edit(model, {"blocks.1": hs.scale(0.5)}), torch.inference_mode():
            model(x)


@pytest.mark.parametrize("how", ["non-reentrant", "reentrant"])
def test_a_first_run_before_the_edit_cannot_be_told_and_raises(how: str) -> None:
    model = Stack(how)
    loss = model(batch().requires_grad_()).sum()
    with hs.edit(model, {"shared": hs.scale(0.5).at(calls=0)}) as e:
        model(batch().requires_grad_())
        with pytest.raises(
            hs.UsageError, match="checkpointing runs a call again of which the first run was not seen while the edit was on"
        ):
            loss.backward()
    assert e.closed
