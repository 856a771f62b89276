"""What goes bad outside the model is named, with its line; what is there on purpose raises no alarm."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, nll_loss

import hookscope as hs
from hookscope._core._finding import Finding

Loss = Callable[[torch.Tensor], torch.Tensor]


def watched(loss: Loss, *, batch: torch.Tensor | None = None, steps: int = 2) -> hs.Run:
    """Two steps of a small model under this loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    with hs.watch(model, sgd, on_finding="ignore") as w:
        for _ in range(steps):
            sgd.zero_grad()
            loss(model(torch.randn(5, 4) if batch is None else batch)).backward()
            sgd.step()
    assert [event for event in w.run.events if event["event"] == "switched_off"] == []
    return w.run


def first(run: hs.Run) -> Finding:
    return hs.diagnose(run).findings[0]


class Advantage(nn.Module):
    """Normalises by the spread of the rewards: of one sample it is NaN."""

    def forward(self, rewards: torch.Tensor) -> torch.Tensor:
        return (rewards - rewards.mean()) / rewards.std()


def clipped(y: torch.Tensor) -> torch.Tensor:
    y = y * 1.0
    y[:, 0] = 0.0
    return y.log().sum()


def undone(y: torch.Tensor) -> torch.Tensor:
    """The infinities are overwritten before anybody uses them; the fault is behind them."""
    weights = 1.0 / (y * 0)
    weights[:] = 1.0
    return (y * weights * 0 - 1).sqrt().sum()


def written_through_a_view(y: torch.Tensor) -> torch.Tensor:
    z = y * 1.0
    z.view(-1).mul_(0.0)
    return (y / z).sum()


def filled_through_a_view(y: torch.Tensor) -> torch.Tensor:
    weights = torch.ones_like(y)
    weights[2].zero_()
    return (y / weights).sum()


def on_the_model_s_output(y: torch.Tensor) -> torch.Tensor:
    y.mul_(0.0)
    return y.sqrt().sum()


def drawn(y: torch.Tensor) -> torch.Tensor:
    """Bad only where the same numbers are drawn again."""
    noise = torch.rand_like(y)
    return (y * 0 + noise - noise.max()).log().sum()


CASES: dict[str, tuple[Loss, str, str, str]] = {
    "log": (lambda y: (y * 0 - 1).log().sum(), "log", "forward", ".log()"),
    "sqrt backward": (lambda y: (y * 0).sqrt().sum(), "sqrt", "backward", ".sqrt()"),
    "filled view": (filled_through_a_view, "div", "forward", "y / weights"),
    "advantage": (lambda y: y.sum() * Advantage()(torch.ones(1)).sum(), "std", "forward", "rewards.std()"),
    "mean of nothing": (lambda y: cross_entropy(y, torch.full((5,), -100)), "nll_loss_forward", "forward", "cross_entropy("),
    "norm": (lambda y: (y - y.detach()).pow(2).sum(-1).sqrt().sum(), "sqrt", "backward", ".sqrt()"),
    "written by index": (clipped, "log", "forward", "y.log()"),
    "written by index and mended": (undone, "sqrt", "forward", ".sqrt()"),
    "written through a view": (written_through_a_view, "div", "forward", "(y / z)"),
    "written in place": (on_the_model_s_output, "sqrt", "backward", "y.sqrt()"),
    "random": (drawn, "log", "forward", ".log()"),
    "loss module": (lambda y: nn.PoissonNLLLoss(log_input=False, eps=0.0)(y * 0, torch.ones(5, 3)), "log", "forward", "PoissonNLLLoss("),
}


@pytest.mark.filterwarnings("ignore:std.*degrees of freedom")
@pytest.mark.parametrize("name", CASES)
def test_a_fault_in_the_loss_is_named_with_its_line(name: str) -> None:
    loss, op, direction, code = CASES[name]
    finding = first(watched(loss))
    assert (finding.op, finding.where, finding.module, finding.first_step) == (op, "loss", None, 0)
    assert finding.phase == direction
    assert finding.source is not None
    assert code in finding.source["code"]
    assert finding.evidence["exact"], finding.evidence["notes"]


@pytest.mark.filterwarnings("ignore:std.*degrees of freedom")
def test_what_makes_the_batch_bad_before_the_forward_is_named() -> None:
    def normalised(step: int) -> torch.Tensor:
        returns = torch.arange(20.0).view(5, 4)
        return (returns - returns.mean()) / (returns.std() * (1 - step))

    model = nn.Linear(4, 1)
    with hs.watch(model, on_finding="ignore") as w:
        for step in range(2):  # nothing is noted before the first forward
            model(normalised(step)).sum().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
    finding = first(w.run)
    assert (finding.rule, finding.op, finding.module, finding.first_step) == ("nonfinite-input", "div", None, 1)
    assert finding.source is not None
    assert "returns.mean()" in finding.source["code"]


def masked_softmax(y: torch.Tensor) -> torch.Tensor:
    return -y.masked_fill(torch.arange(3) == 0, -math.inf).softmax(-1)[:, 1:].log().mean()


def unused_branch(y: torch.Tensor) -> torch.Tensor:
    return torch.where(y.detach() > 1e9, y.detach().mul(0).log(), y).square().sum()


def thrown_away(y: torch.Tensor) -> torch.Tensor:
    _ = (y.detach() * 0 - 1).log()
    return y.square().sum()


def best_so_far(y: torch.Tensor) -> torch.Tensor:
    best = torch.full((3,), -math.inf)
    return torch.maximum(y, best).square().sum()


@pytest.mark.parametrize("loss", [masked_softmax, unused_branch, thrown_away, best_so_far])
def test_infinities_on_purpose_raise_no_alarm(loss: Loss) -> None:
    run = watched(loss)
    assert [f.headline for f in hs.diagnose(run) if f.severity != "info"] == []
    assert [event for event in run.events if event["event"] == "origin"] == []


def test_a_mask_is_not_to_blame_for_what_follows_it() -> None:
    def loss(y: torch.Tensor) -> torch.Tensor:
        scores = y.masked_fill(torch.arange(3) >= 0, -math.inf)
        return scores.softmax(-1).sum()

    finding = first(watched(loss))
    assert (finding.op, finding.where) == ("_softmax", "loss")
    assert "masked_fill had put an infinity there" in finding.message


def test_a_loss_that_uses_another_model_without_gradients_is_still_followed() -> None:
    torch.manual_seed(0)
    online, target = nn.Linear(4, 3), nn.Linear(4, 3)
    sgd = torch.optim.SGD(online.parameters(), lr=0.1)
    with hs.watch({"online": online, "target": target}, sgd, on_finding="ignore") as w:
        q = online(torch.randn(5, 4))
        with torch.no_grad():
            wanted = target(torch.randn(5, 4))
        (q - q.detach() + 0 * wanted).square().sum().sqrt().backward()
        sgd.step()
    finding = first(w.run)
    assert (finding.op, finding.phase, finding.where) == ("sqrt", "backward", "loss")
    assert finding.evidence["exact"]


def test_what_no_verdict_can_follow_is_still_found() -> None:
    """A Function of the program's own is not seen outside a model: the operation cannot be told, the place can."""

    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            return grads[0] * math.nan

    finding = first(watched(lambda y: Identity.apply(y).sum()))
    assert (finding.rule, finding.where, finding.op) == ("nonfinite-backward", "loss", None)


def test_transforms_in_the_loss_are_left_alone() -> None:
    def loss(y: torch.Tensor) -> torch.Tensor:
        each = torch.func.vmap(lambda row: row.square().sum())(y)
        inner = torch.func.grad(lambda v: v.square().sum())(y.detach())
        return (each.sum() + inner.sum()) * 1.0

    assert hs.diagnose(watched(loss)).findings == ()
    finding = first(watched(lambda y: (loss(y) * 0 - 1).log()))
    assert (finding.op, finding.where) == ("log", "loss")


def test_a_generator_of_the_program_s_own_is_not_advanced_by_the_second_run() -> None:
    def states(ill: bool) -> torch.Tensor:
        generator = torch.Generator().manual_seed(3)

        def loss(y: torch.Tensor) -> torch.Tensor:
            noise = torch.empty_like(y).uniform_(generator=generator)
            picked = torch.multinomial(y.detach().softmax(-1), 1, generator=generator)
            return ((y.gather(1, picked) + noise) * 0 - float(ill)).log1p().sum()

        run = watched(loss, steps=1)
        assert bool(hs.diagnose(run).findings) is ill
        return generator.get_state()

    assert torch.equal(states(ill=True), states(ill=False))


def test_negative_log_likelihood_of_an_underflow_is_named_in_the_line_that_made_it() -> None:
    def loss(y: torch.Tensor) -> torch.Tensor:
        probabilities = (y * 1e5).softmax(-1)
        logs = probabilities.log()
        return nll_loss(logs, torch.zeros(5, dtype=torch.long))

    finding = first(watched(loss))
    assert (finding.op, finding.source and finding.source["code"]) == ("log", "logs = probabilities.log()")
