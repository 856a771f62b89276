"""Values that leap or fall: sick programs are named with module, direction, operation and line; sound ones raise nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._core._finding import Finding

from ._sound import SOUND
from ._sound_models import batch

pytestmark = pytest.mark.slow


def leaps(run: hs.Run) -> list[Finding]:
    return [finding for finding in hs.diagnose(run) if finding.rule == "leap"]


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_training_has_no_leap(name: str) -> None:
    torch.manual_seed(0)
    sound = SOUND[name]()
    with hs.watch(sound.model, on_finding="ignore") as w:
        for number in range(60):
            sound.step(number)
    assert [event for event in w.run.events if event["event"] == "switched_off"] == []
    assert [finding.headline for finding in leaps(w.run) if finding.severity != "info"] == []
    assert [finding.headline for finding in w.findings if finding.rule == "leap" and finding.severity != "info"] == []


def test_a_resumed_training_has_no_leap(tmp_path: object) -> None:
    torch.manual_seed(0)
    sound = SOUND["warm-up"]()
    for part in range(2):
        with hs.watch(sound.model, to=f"{tmp_path}/run", resume=bool(part), on_finding="ignore"):
            for number in range(30):
                sound.step(30 * part + number)
    assert leaps(hs.Run(f"{tmp_path}/run")) == []


class Scaled(nn.Module):
    """Own code between two layers, whose factor the program sets."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.b, self.factor = nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4), 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.act(self.a(x)) * self.factor)


class Steep(torch.autograd.Function):
    """The identity, with a factor on its gradient."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, factor: float) -> torch.Tensor:  # type: ignore[no-untyped-def]
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[no-untyped-def]
        return grads[0] * ctx.factor, None


class Bent(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(Steep.apply(self.act(self.a(x)), self.factor))


def watched(model: Scaled, factor: float, *, at: int = 24, until: int = 40, change: Callable[[Scaled], None] | None = None) -> hs.watch:
    torch.manual_seed(0)
    sgd = torch.optim.SGD(model.parameters(), 0.05)
    with hs.watch(model, sgd, on_finding="ignore") as w:
        for number in range(until):
            model.factor = factor if number >= at else 1.0
            if number == at and change is not None:
                change(model)
            x, label = batch()
            sgd.zero_grad()
            nn.functional.cross_entropy(model(x), label).backward()
            sgd.step()
    return w


def test_a_rise_in_the_forward_is_named_with_its_line() -> None:
    w = watched(Scaled(), 1e5)
    (finding,) = leaps(w.run)
    assert (finding.severity, finding.module, finding.op, finding.phase, finding.first_step) == ("error", "(root)", "mul", "forward", 24)
    assert finding.source is not None
    assert "* self.factor" in finding.source["code"]
    assert hs.diagnose(w.run).findings[0].rule == "leap"
    assert [f.first_step for f in w.findings if f.rule == "leap"] == [24]


def test_a_rise_in_the_backward_is_named_with_its_line() -> None:
    (finding, *_) = leaps(watched(Bent(), 1e5).run)
    assert (finding.severity, finding.module, finding.op, finding.phase, finding.first_step) == ("error", "(root)", "Steep", "backward", 24)
    assert finding.source is not None
    assert "grads[0] * ctx.factor" in finding.source["code"]


@pytest.mark.parametrize("factor", [0.0, 1e-6])
def test_a_fall_that_lasts_is_named_with_its_line(factor: float) -> None:
    (finding, *_) = leaps(watched(Scaled(), factor).run)
    assert (finding.severity, finding.module, finding.op, finding.phase, finding.first_step) == ("warning", "(root)", "mul", "forward", 24)
    assert finding.source is not None
    assert "* self.factor" in finding.source["code"]


def test_a_fall_that_passes_is_information() -> None:
    assert [finding.severity for finding in leaps(watched(Scaled(), 0.0, at=24, until=28).run)] == ["info"]


def test_a_weight_that_has_leapt_is_named() -> None:
    def write(model: Scaled) -> None:
        with torch.no_grad():
            model.a.weight.mul_(1e5)

    (finding, *_) = leaps(watched(Scaled(), 1.0, change=write).run)
    assert (finding.where, finding.module, finding.first_step) == ("optimizer", "a", 24)
    assert "parameter a.weight has become 1e+05 times as large" in finding.message
