"""A second run that may differ from the first says so, and why; one that equals it says that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._core._finding import Finding

NAN = float("nan")


class Faulty(nn.Module):
    """A fault behind a layer; `draw` adds something that a second run may not give again."""

    def __init__(self, draw: Callable[[], torch.Tensor] = lambda: torch.zeros(())) -> None:
        super().__init__()
        self.inner, self.draw = nn.Linear(4, 3), draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inner(x + self.draw())
        return h + (h.detach() * 0 - 1).log() * (h > -9)


def found(
    model: nn.Module, *, batch: torch.Tensor | None = None, between: Callable[[nn.Module, torch.Tensor], object] = lambda model, x: None
) -> Finding:
    """The first finding of one step; `between` runs between its forward and its backward."""
    x = torch.ones(2, 4) if batch is None else batch
    with hs.watch(model, on_finding="ignore") as w:
        loss = model(x).sum()
        between(model, x)
        loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert [event for event in w.run.events if event["event"] == "switched_off"] == []
    return hs.diagnose(w.run).findings[0]


def counter() -> Callable[[], torch.Tensor]:
    calls = 0

    def draw() -> torch.Tensor:
        nonlocal calls
        calls += 1
        return torch.tensor(float(calls))

    return draw


def private_generator() -> Callable[[], torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return lambda: torch.randn(4, generator=generator)


def through_data(model: nn.Module, x: torch.Tensor) -> None:
    next(model.parameters()).data.mul_(2.0)


def in_place(model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        next(iter(model.buffers()), torch.zeros(())).add_(1.0)
        x.mul_(2.0)


def weights_in_place(model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        model.get_submodule("inner").get_parameter("bias").add_(1.0)


OTHERS = "the second forward gave other outputs"
INEXACT: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, torch.Tensor], object], str]] = {
    "input written to": (Faulty, in_place, "1 input(s) of the model were written to"),
    "weights written to": (Faulty, weights_in_place, "parameters have changed"),
    "weights written to through .data": (Faulty, through_data, OTHERS),
    "a counter": (lambda: Faulty(counter()), lambda model, x: None, OTHERS),
    "a generator of its own": (lambda: Faulty(private_generator()), lambda model, x: None, OTHERS),
}


class Shown(nn.Module):
    """Returns what its inside makes beside what is bad, so that a difference shows in an output that is finite."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inner, self.inside = nn.Linear(4, 4), inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        draw = self.inside.draw
        assert callable(draw)
        h = self.inner(x + draw())
        return torch.where(torch.arange(4) == 0, self.inside(h).sum(-1, keepdim=True), h)


@pytest.mark.parametrize("name", INEXACT)
def test_a_second_run_that_may_differ_says_so_and_why(name: str) -> None:
    make, between, note = INEXACT[name]
    torch.manual_seed(0)
    inside = make()
    finding = found(Shown(inside), between=between)
    assert (finding.op, finding.evidence["exact"]) == ("log", False)
    assert any(text.startswith(note) for text in finding.evidence["notes"])
    assert f"(approximate: {'; '.join(finding.evidence['notes'])})" in finding.message


def test_a_second_run_that_is_the_same_says_nothing_of_a_difference() -> None:
    torch.manual_seed(0)
    finding = found(Shown(Faulty(lambda: torch.randn(4))))
    assert (finding.op, finding.evidence["exact"], finding.evidence.get("notes")) == ("log", True, None)
    assert "approximate" not in finding.message


def test_what_a_later_module_hides_is_still_named_in_the_forward() -> None:
    """tanh turns the infinity into 1, and the gradient of what made it is bad, too: both are noted, each finding has its own."""

    class Inverse(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 0 + 1) / (x * 0)

    torch.manual_seed(0)
    finding = found(nn.Sequential(nn.Linear(4, 4), Inverse(), nn.Tanh(), nn.Linear(4, 1)))
    assert (finding.rule, finding.op, finding.module, finding.phase) == ("nonfinite-forward", "div", "1", "forward")


def test_values_that_went_in_are_told_with_the_samples_that_are_bad() -> None:
    class Root(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sqrt()

    batch = torch.tensor([[4.0], [-1.0], [9.0], [-0.25]])
    with torch.no_grad():
        layer = nn.Linear(1, 1)
        layer.weight.fill_(1.0)
        layer.bias.zero_()
    finding = found(nn.Sequential(layer, Root()), batch=batch)
    assert finding.evidence["samples"] == (1, 3) or finding.evidence["samples"] == [1, 3]
    (operand,) = finding.evidence["operands"]
    assert (operand["min"], operand["max"], operand["nan"], operand["inf"]) == (-1.0, 9.0, 0, 0)
    assert "in samples 1, 3 of the batch" in finding.message
