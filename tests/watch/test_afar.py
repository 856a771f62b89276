"""What lies on a device is looked at without waiting for it, a step later; here memory of the host plays a device that is slow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

import hookscope as hs
from hookscope._stats import Cells, Row, _ring
from hookscope._watch import _pace

from ._loops import LOOPS, STEPS, Loop, X, net, ordinary, run

FIRST = 3


class Slow:
    """A copy that has not arrived before it is asked for."""

    def __init__(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.source, self.target = source.clone(), target

    def query(self) -> bool:
        self.synchronize()
        return True

    def synchronize(self) -> None:
        self.target.copy_(self.source)


class Copier:
    """Queues such copies."""

    def memory(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty(rows, 8, dtype=torch.float64), torch.full((rows, 8), torch.nan, dtype=torch.float64)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> Slow:
        return Slow(source, target)

    def usable(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _far(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row can be read by the host without a copy."""
    row = Cells.row

    def far(self: Cells) -> Row:
        near = row(self)
        return Row(near.view, 0, near.place, None)

    monkeypatch.setattr(Cells, "row", far)
    monkeypatch.setattr(_ring, "copier_for", lambda _cells: Copier())
    monkeypatch.setattr(_pace, "OPENING_S", 0.0)
    monkeypatch.setattr(_pace.Pace, "_decide", lambda self, step: step < FIRST or step <= self._until)


@pytest.mark.parametrize("loop", LOOPS)
def test_steps_are_counted_as_where_all_are_recorded(loop: Loop) -> None:
    few, weights = run(loop)
    all_, same = run(loop, every=1)
    assert few == all_
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))


@pytest.mark.parametrize("exact", [False, True])
def test_only_where_it_is_asked_for_does_a_step_that_is_left_out_wait(monkeypatch: pytest.MonkeyPatch, *, exact: bool) -> None:
    reads: list[int] = []
    read = Cells.read

    def counted(self: Cells, rows: Sequence[Row]) -> np.ndarray:
        reads.append(number)
        return read(self, rows)

    monkeypatch.setattr(Cells, "read", counted)
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    step = ordinary(model, sgd)
    number = 0
    with hs.watch(model, sgd, on_finding="ignore", exact=exact):
        for number in range(STEPS):
            step(number)
    left_out = set(range(2 * FIRST, STEPS))
    assert left_out & set(reads) == (left_out if exact else set())


@pytest.mark.parametrize(
    ("exact", "factor", "first"), [(False, float("nan"), 16), (True, float("nan"), 15), (False, 1e6, 16), (True, 1e6, 15)]
)
def test_what_is_wrong_is_recorded_from_the_next_step_on_and_at_once_if_exact(*, exact: bool, factor: float, first: int) -> None:
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=1e-9)
    target = X.sum(1, keepdim=True)
    with hs.watch(model, sgd, on_finding="ignore", exact=exact) as w:
        for number in range(STEPS):
            sgd.zero_grad()
            ((model(X) - target).square().mean() * (factor if number == 15 else 1.0)).backward()
            sgd.step()
    steps = [step for step in w.run.steps.tolist() if step >= FIRST]
    assert steps[0] == first


def test_the_loss_of_a_step_that_turns_out_to_have_two_backwards_is_its_own() -> None:
    """The rows that were sent are written again by the second forward before anybody asks for the first."""
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    with hs.watch(model, sgd, on_finding="ignore") as w:
        for number in range(STEPS):
            sgd.zero_grad()
            for part in range(2 if number == 15 else 1):
                (model(X) * (1.0 + 1e5 * part)).square().mean().backward()
            sgd.step()
    usual, large = ((net()(X) * (1.0 + 1e5 * part)).square().mean().item() for part in range(2))
    series = w.run["loss", "max"]
    at_15 = series.values[series.steps == 15]
    assert at_15.tolist() == pytest.approx([max(usual, large)])
