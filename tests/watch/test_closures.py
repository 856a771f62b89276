"""`on_nonfinite` in steps with a closure: whichever evaluation goes bad, the step has no effect, or raises and has none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import hookscope as hs

BAD = 3
Make = Callable[[nn.Module], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "lbfgs": lambda m: torch.optim.LBFGS(m.parameters(), 0.5, max_iter=4),
    "lbfgs with a search": lambda m: torch.optim.LBFGS(m.parameters(), 0.5, max_iter=4, line_search_fn="strong_wolfe"),
    "adam": lambda m: torch.optim.Adam(m.parameters(), 1e-2),
}


class Trained:
    """Six steps; in step `BAD` evaluation number `bad` of the closure is NaN (None: that step is left out by hand)."""

    def __init__(self, make: Make, bad: int | None, **how: object) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        self.optimizer = make(self.model)
        self.x, self.bad = torch.randn(5, 8), bad
        if bad is None:
            self.steps()
        else:
            with hs.watch(self.model, self.optimizer, on_finding="ignore", **how) as self.watch:  # type: ignore[arg-type]
                self.steps()

    def steps(self) -> None:
        for number in range(6):
            if self.bad is not None or number != BAD:
                self.before = self.bits()
                self.step(number)

    def step(self, number: int) -> None:
        evaluations = 0

        def closure() -> torch.Tensor:
            nonlocal evaluations
            self.optimizer.zero_grad()
            loss = (self.model(self.x) - 1).square().mean()
            if number == BAD and evaluations == self.bad:
                loss = loss * float("nan")
            evaluations += 1
            loss.backward()
            return loss

        self.optimizer.step(closure)  # type: ignore[arg-type]  # torch asks for floats and takes tensors

    def bits(self) -> list[bytes]:
        return [p.detach().numpy().tobytes() for p in self.model.parameters()]

    def state(self) -> list[bytes]:
        kept = [torch.as_tensor(v) for s in self.optimizer.state.values() for v in s.values() if isinstance(v, (int, float, torch.Tensor))]
        return [t.detach().numpy().tobytes() for t in kept]


@pytest.mark.parametrize(("name", "bad"), [("lbfgs", 0), ("lbfgs", 2), ("lbfgs with a search", 0), ("lbfgs with a search", 2), ("adam", 0)])
def test_a_step_that_is_left_out_has_no_effect(name: str, bad: int) -> None:
    guarded, by_hand = Trained(OPTIMIZERS[name], bad, on_nonfinite="skip"), Trained(OPTIMIZERS[name], None)
    assert (guarded.bits(), guarded.state()) == (by_hand.bits(), by_hand.state())
    assert [(e["step"], e["by"]) for e in guarded.watch.run.events if e["event"] == "skipped"] == [(BAD, "hookscope")]
    found = [f for f in hs.diagnose(guarded.watch.run) if f.rule == "nonfinite-loss" or "search" not in name]
    (finding,) = found  # a search goes on with what it has, until the step is taken back
    assert (finding.rule, finding.severity, finding.op) == ("nonfinite-loss", "warning", "mul")
    assert finding.message.endswith("; on_nonfinite left this step out")


@pytest.mark.parametrize(("name", "bad"), [("lbfgs", 0), ("lbfgs", 2), ("adam", 0)])
def test_a_step_that_raises_leaves_the_weights_as_they_were(name: str, bad: int) -> None:
    seen: list[Trained] = []

    class Kept(Trained):
        def steps(self) -> None:
            seen.append(self)
            super().steps()

    with pytest.raises(hs.NonFiniteError, match=r"nonfinite-loss at step 3: .*mul made it at test_closures\.py:"):
        Kept(OPTIMIZERS[name], bad, on_nonfinite="raise")
    assert seen[0].bits() == seen[0].before


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_where_nothing_goes_bad_the_training_ends_with_the_same_bits(name: str) -> None:
    guarded, bare = Trained(OPTIMIZERS[name], 99, on_nonfinite="skip"), Trained(OPTIMIZERS[name], 99)
    assert (guarded.bits(), guarded.state()) == (bare.bits(), bare.state())


def test_a_closure_given_by_name_is_guarded_too() -> None:
    model = nn.Linear(2, 1)
    sgd = torch.optim.SGD(model.parameters(), 0.1)

    def closure() -> torch.Tensor:
        loss = model(torch.ones(3, 2)).sum() * float("nan")
        loss.backward()
        return loss

    before = model.weight.detach().clone()
    with hs.watch(model, sgd, on_finding="ignore", on_nonfinite="skip"):
        sgd.step(closure=closure)  # type: ignore[arg-type]
    assert torch.equal(model.weight, before)
