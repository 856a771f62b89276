"""The optimizer's part: settings that cannot be right, and clean gradients that leave bad weights, named with the cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._core._finding import Finding

AT = 3
Change = Callable[[nn.Sequential, torch.optim.Optimizer], None]


def nothing(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    pass


def trained(
    make: Callable[[Any], torch.optim.Optimizer],
    *,
    before: Change = nothing,
    grads: Change = nothing,
    dtype: torch.dtype = torch.float32,
    scale: float = 1.0,
) -> tuple[Finding, ...]:
    """Six steps; at step `AT` something is changed before the forward, or between backward and step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(dtype)
    optimizer = make(model.parameters())
    with hs.watch(model, optimizer, on_finding="ignore") as w:
        for step in range(6):
            if step == AT:
                before(model, optimizer)
            optimizer.zero_grad()
            ((model(torch.randn(5, 8).to(dtype)) - 1).square().mean() * scale).backward()
            if step == AT:
                grads(model, optimizer)
            optimizer.step()
    assert [event for event in w.run.events if event["event"] == "switched_off"] == []
    return hs.diagnose(w.run).findings


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 1e-2)


def rate(value: float) -> Change:
    def change(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = value

    return change


def test_an_eps_that_is_0_in_half_precision() -> None:
    first = trained(lambda p: torch.optim.Adam(p, 1e-3), dtype=torch.float16, scale=1e-3)[0]
    assert (first.rule, first.where, first.first_step) == ("nonfinite-weight", "optimizer", 0)
    assert "eps=1e-08 of Adam is 0 in float16, so it divides 0 by 0" in first.message


def test_an_eps_that_half_precision_holds_is_fine() -> None:
    assert trained(lambda p: torch.optim.Adam(p, 1e-3, eps=1e-4), dtype=torch.float16, scale=1e-3) == ()


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_learning_rate_that_is_not_finite(name: str, value: float) -> None:
    first, second, *_ = trained(lambda p: getattr(torch.optim, name)(p, 1e-2), before=rate(value))
    assert (first.rule, first.severity, first.where, first.first_step) == ("optimizer-setting", "error", "optimizer", AT)
    assert first.message == f"the learning rate of {name} is {value}"
    assert (second.rule, second.first_step) == ("nonfinite-weight", AT)
    assert f"the learning rate of {name} was {value}" in second.message
    assert 1 in first.explains


def test_a_learning_rate_below_0() -> None:
    (found,) = trained(sgd, before=rate(-0.5))
    assert (found.rule, found.first_step) == ("optimizer-setting", AT)
    assert "is -0.5: each step goes up the gradient" in found.message


def test_a_learning_rate_below_0_of_one_who_maximises_is_meant() -> None:
    assert trained(lambda p: torch.optim.SGD(p, 1e-2, maximize=True), before=rate(-0.01)) == ()


@pytest.mark.parametrize(("decay", "wrong"), [(50.0, True), (0.1, False), (15.0, False)])
def test_a_weight_decay_that_makes_weights_grow(decay: float, wrong: bool) -> None:
    found = [f for f in trained(lambda p: torch.optim.AdamW(p, 0.1, weight_decay=decay)) if f.rule == "optimizer-setting"]
    assert len(found) == wrong
    if wrong:
        assert found[0].message == "lr * weight_decay of AdamW is 5 (0.1 * 50): each step multiplies weights by -4"


def test_gradients_that_the_loop_makes_nan() -> None:
    def clip(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
        for p in model.parameters():
            assert p.grad is not None
            p.grad.mul_(0 * p.grad.norm() / torch.tensor(0.0))

    first = trained(sgd, grads=clip)[0]
    assert (first.rule, first.where, first.first_step) == ("nonfinite-weight", "loop", AT)
    assert "it was finite when the backward had ended: the loop made it bad before the step" in first.message


def test_a_norm_beyond_float32_that_clips_everything_away() -> None:
    def clip(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    found = [f for f in trained(lambda p: torch.optim.SGD(p, 0.0), grads=clip, scale=1e26) if f.rule == "optimizer-setting"]
    assert [(f.where, f.first_step) for f in found] == [("loop", AT)]
    assert "clipping left nothing of the gradients" in found[0].message


def test_gradients_set_to_0_on_purpose_are_fine() -> None:
    def clear(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
        for p in model.parameters():
            assert p.grad is not None
            p.grad.zero_()

    assert trained(sgd, grads=clear) == ()


def spoil_in_place(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        model[2].weight[1, 2] = float("nan")  # type: ignore[index, operator]


def spoil_data(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    model[2].weight.data[1, 2] = float("inf")  # type: ignore[index, operator, union-attr]


def replace_data(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    model[2].weight.data = torch.full((4, 16), float("nan"))


@pytest.mark.parametrize(
    ("write", "known"), [(spoil_in_place, "in place"), (spoil_data, "the update before left it finite"), (replace_data, "put in its place")]
)
def test_a_weight_written_between_steps(write: Change, known: str) -> None:
    first = trained(sgd, before=write)[0]
    assert (first.rule, first.where, first.module, first.phase) == ("nonfinite-weight", "loop", "2", "optimizer")
    assert "it was written between steps 2 and 3, by the program and no optimizer" in first.message
    assert known in first.message
