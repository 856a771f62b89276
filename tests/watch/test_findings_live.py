"""Findings while the training runs: told at the user's line, once, before bad gradients are used; and the same that a reader finds."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs

from ._small import adam, batch, bits, events, mlp, told, train

pytestmark = pytest.mark.slow

NAN = math.nan
HERE = Path(__file__).name


class Log(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x)


class Masked(nn.Module):
    """An attention-like mask: one score in eight is -inf, on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.mask, self.value = nn.Linear(4, 8), Mask(), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value(torch.softmax(self.mask(self.score(x)), -1))


class Mask(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(torch.arange(x.shape[-1]) == 0, -math.inf)


class Survived(nn.Module):
    """One module makes NaN at every step, and the model throws them away."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.odd, self.out = nn.Linear(4, 8), Log(), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inner(x)
        return self.out(h + 0 * torch.nan_to_num(self.odd(h.detach())))


def survived() -> nn.Module:
    torch.manual_seed(0)
    return Survived()


def masked() -> nn.Module:
    torch.manual_seed(0)
    return Masked()


def spoil(model: nn.Module, first: int) -> Callable[[int], None]:
    """From step `first` on, one gradient is NaN when the optimizer comes."""

    def before_step(step: int) -> None:
        gradient = next(model.parameters()).grad
        assert gradient is not None
        if step >= first:
            gradient[0, 0] = NAN

    return before_step


def facts(findings: Any) -> set[tuple[Any, ...]]:
    return {(f.rule, f.severity, f.where, f.module, f.first_step) for f in findings}


# -- warn -----------------------------------------------------------------------------------------------------------------------------


def test_a_warning_names_the_line_of_the_users_optimizer_step() -> None:
    model = mlp()
    optimizer = adam(model)
    lines = []
    with told(hs.FindingWarning) as given, hs.watch(model, optimizer):
        for step in range(3):
            optimizer.zero_grad()
            model(batch(step)).mean().backward()
            spoil(model, 1)(step)
            lines.append(sys._getframe().f_lineno + 1)
            optimizer.step()
    assert (Path(given[0].filename).name, given[0].lineno) == (HERE, lines[0])
    assert str(given[0].message).startswith("hookscope: error nonfinite-weight at step 1: the gradient of 0.weight has 1 NaN among 32 ")


def test_a_warning_names_the_line_of_the_backward_where_that_tells_it() -> None:
    """An optimizer nobody named: its step is closed by the next one, and gradients that were thrown away by the next backward."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with told(hs.FindingWarning) as given, hs.watch(model, optimizer):
        optimizer.step()
        for _ in range(2):
            optimizer.zero_grad()
            line = sys._getframe().f_lineno + 1
            (model(batch(0)).mean() * NAN).backward()
    assert [(Path(w.filename).name, w.lineno) for w in given] == [(HERE, line)]


def test_a_warning_names_the_users_line_even_through_a_scheduler_and_a_scaler() -> None:
    model = mlp()
    optimizer = adam(model)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # replaces optimizer.step
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with told(hs.FindingWarning) as given, hs.watch(model, optimizer):
        model(batch(0)).mean().backward()
        spoil(model, 0)(0)
        line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
        scaler.step(optimizer)
    assert {(Path(w.filename).name, w.lineno) for w in given} == {(HERE, line)}


def test_a_finding_is_warned_of_once_and_not_at_every_step() -> None:
    model = mlp()
    optimizer = adam(model)
    with told(hs.FindingWarning) as given, hs.watch(model, optimizer) as watched:
        train(model, optimizer, 40, before_step=spoil(model, 3))
    assert len(given) == len(watched.findings) == 1
    assert (watched.findings[0].rule, watched.findings[0].where) == ("nonfinite-weight", "loop")


# -- raise ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [mlp, masked, survived])
@pytest.mark.parametrize("fault", ["loss", "gradient"])
@pytest.mark.parametrize("first", [0, 3, 70])
def test_raise_comes_before_the_parameters_are_changed(make: Callable[[], nn.Module], fault: str, first: int) -> None:
    """Masks and NaN that the model survives are in every frame: a real fault after many of them must not pass for one more."""
    model = make()
    optimizer = adam(model)
    before = []

    def data(step: int) -> torch.Tensor:
        before.append(bits(model))
        return batch(step)

    def loss(y: torch.Tensor) -> torch.Tensor:
        return y.square().mean() * (NAN if fault == "loss" and len(before) > first else 1)

    spoiled = spoil(model, first) if fault == "gradient" else lambda step: None
    with pytest.raises(hs.FindingError) as caught, hs.watch(model, optimizer, on_finding="raise"):
        train(model, optimizer, first + 5, data=data, loss=loss, before_step=spoiled)
    assert len(before) == first + 1
    assert bits(model) == before[-1]
    finding = caught.value.findings[0]
    assert (finding.first_step, finding.severity) == (first, "error")
    assert str(caught.value).splitlines()[0] == finding.headline


def test_raise_lets_a_mere_warning_pass_as_a_warning() -> None:
    model = mlp()
    optimizer = adam(model)
    with told(hs.FindingWarning) as given, hs.watch(model, optimizer, on_finding="raise", grad_norm_threshold=1e-9) as watched:
        train(model, optimizer)
    assert {f.severity for f in watched.findings} == {"warning"}
    assert len(given) == len(watched.findings) == 1


def fail_with_nan(model: nn.Module) -> None:
    """A finding is waiting, but the program has an error of its own."""
    (model(batch(0)).mean() * NAN).backward()
    raise ZeroDivisionError


@pytest.mark.parametrize("make", [mlp, masked, survived])
def test_a_limit_on_the_gradient_is_heeded_whatever_else_the_frames_hold(make: Callable[[], nn.Module]) -> None:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scale, told_at = iter([1.0] * 20 + [1e6] + [1.0] * 9), []
    with hs.watch(model, optimizer, grad_norm_threshold=1e3, on_finding=lambda f: told_at.append((f.rule, watched.step))) as watched:
        train(model, optimizer, 30, loss=lambda y: (y - 1).square().mean() * next(scale))
    assert ("exploding-grad", 21) in told_at


def test_an_error_of_the_users_own_is_not_replaced_by_a_finding() -> None:
    model = mlp()
    with told(hs.FindingWarning) as given, pytest.raises(ZeroDivisionError), hs.watch(model, on_finding="raise"):
        fail_with_nan(model)
    assert len(given) == 1


# -- a function, and silence ----------------------------------------------------------------------------------------------------------


def test_a_function_is_given_each_finding() -> None:
    model = mlp()
    optimizer = adam(model)
    heard: list[hs.Finding] = []
    with hs.watch(model, optimizer, on_finding=heard.append) as watched:
        train(model, optimizer, before_step=spoil(model, 3))
    assert tuple(heard) == watched.findings
    assert [type(f) for f in heard] == [hs.Finding]


def test_a_function_may_stop_the_training_before_the_update() -> None:
    class StopError(Exception):
        pass

    def stop(finding: hs.Finding) -> None:
        raise StopError(finding.rule)

    model = mlp()
    optimizer = adam(model)
    with pytest.raises(StopError, match="nonfinite-weight"), hs.watch(model, optimizer, on_finding=stop):
        train(model, optimizer, before_step=spoil(model, 3))
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_a_function_that_fails_does_not_replace_an_error_of_the_users_own(caplog: pytest.LogCaptureFixture) -> None:
    def broken(finding: hs.Finding) -> None:
        raise KeyError

    model = mlp()
    with pytest.raises(ZeroDivisionError), hs.watch(model, on_finding=broken):
        fail_with_nan(model)
    assert ["on_finding failed at: error nonfinite-loss" in record.message for record in caplog.records] == [True]


def test_ignore_says_nothing_and_keeps_the_findings() -> None:
    model = mlp()
    optimizer = adam(model)
    with told(hs.FindingWarning) as given, hs.watch(model, optimizer, on_finding="ignore") as watched:
        train(model, optimizer, before_step=spoil(model, 3))
    assert (given, len(watched.findings)) == ([], 1)


# -- live and afterwards --------------------------------------------------------------------------------------------------------------

FAULTS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], dict[str, Any]]]] = {
    "log of a negative number": (lambda: mlp(Log()), lambda model: {}),
    "NaN gradient": (mlp, lambda model: {"before_step": spoil(model, 3)}),
    "NaN loss": (mlp, lambda model: {"loss": lambda y: y.mean() * NAN}),
    "NaN in one batch": (mlp, lambda model: {"data": lambda step: batch(step) * (NAN if step == 2 else 1)}),
    "mask": (masked, lambda model: {}),
    "sound": (mlp, lambda model: {}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_found_live_is_what_a_reader_of_the_run_finds(fault: str, tmp_path: Path) -> None:
    make, how = FAULTS[fault]
    model = make()
    optimizer = adam(model)
    with hs.watch(model, optimizer, to=tmp_path, on_finding="ignore") as watched:
        train(model, optimizer, 12, **how(model))
    run = hs.Run(tmp_path)
    assert facts(watched.findings) == facts(hs.diagnose(run))
    assert bool(watched.findings) == (fault not in ("mask", "sound"))
    told_in_run = [(e["rule"], e["severity"], e["first"], e["message"]) for e in events(run, "finding")]
    assert told_in_run == [(f.rule, f.severity, f.first_step, f.message) for f in watched.findings]


def test_a_schedule_of_every_fifth_step_still_finds_a_nan_that_stays() -> None:
    """It cannot say where the NaN came from, and says that."""
    model = mlp()
    optimizer = adam(model)
    with hs.watch(model, optimizer, every=5, on_finding="ignore") as watched:
        train(model, optimizer, 12, before_step=lambda step: spoil(model, 3)(step) if step == 3 else None)
    [finding] = watched.findings
    assert (finding.rule, finding.severity, finding.module, finding.first_step) == ("nonfinite-weight", "error", "0", 5)
    assert "the steps after 0, where it was finite, were not recorded" in finding.message
    assert facts(watched.findings) == facts(hs.diagnose(watched.run))
