"""What comes in bad from outside, what is written through views, and functions that the tape knows nothing of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss, multi_head_attention_forward

import hookscope as hs
from hookscope._core._finding import Finding
from hookscope._origin import _tape
from hookscope._origin._region import Region

from .test_outside import Loss, first, watched


def from_numpy(value: float) -> torch.Tensor:
    """As from a loader: torch has computed nothing of it."""
    target = torch.from_numpy(np.zeros((5, 3), np.float32))
    target[3, 0] = value
    return target


NAN, INF = from_numpy(math.nan), from_numpy(math.inf)
BAD_TARGETS: dict[str, tuple[Loss, str, str]] = {
    "in a loss function": (lambda y: mse_loss(y, NAN), "mse_loss", "mse_loss("),
    "by hand": (lambda y: (y - NAN).square().mean(), "sub", "(y - NAN)"),
    "infinite": (lambda y: mse_loss(y, INF), "mse_loss", "mse_loss("),
    "as a weight": (lambda y: (y.square() * INF).mean(), "mul", "* INF"),
}


@pytest.mark.parametrize("name", BAD_TARGETS)
def test_a_bad_target_is_named_where_it_came_in_with_the_samples_that_are_bad(name: str) -> None:
    loss, op, code = BAD_TARGETS[name]
    finding = first(watched(loss, batch=torch.randn(5, 4)))
    assert (finding.rule, finding.op, finding.module, finding.phase) == ("nonfinite-loss", op, None, "forward")
    assert finding.source is not None
    assert code in finding.source["code"]
    assert (finding.evidence["samples"], finding.evidence["exact"]) == ((3,), True)
    assert [operand["nan"] + operand["inf"] for operand in finding.evidence["operands"]] == [0, 1]
    assert "it came in from outside the model" in finding.message


def copied_through_views(y: torch.Tensor) -> torch.Tensor:
    """What is copied last is sound, and leaves the rest as it was."""
    scores, made = torch.zeros(5), (y[:, 0] * 0 - 1).log()
    scores[:3].copy_(made[:3])
    scores[3:].copy_(y.detach()[3:, 0])
    return (scores * y[:, 0]).sum()


def test_what_is_copied_through_a_view_is_followed_to_what_made_it() -> None:
    finding = first(watched(copied_through_views))
    assert (finding.op, finding.phase) == ("log", "forward")
    assert finding.source is not None
    assert ".log()" in finding.source["code"]


def test_what_is_written_over_is_not_copied_before_it_is() -> None:
    assert [_tape.alters(name) for name in ("zero_", "fill_", "copy_", "mul_", "__setitem__")] == [False] * 3 + [True] * 2
    region, weight = Region(), torch.ones(3)
    for name, given in {"zero_": (), "fill_": (1.0,), "copy_": (torch.ones(3),)}.items():
        region.open()
        getattr(weight, name)(*given)
        region.pause()
        assert region.calls[-1].args[0].tensor is weight
    region.leave()


def test_what_is_made_where_nothing_is_noted_is_not_said_to_come_from_outside() -> None:
    finding = first(watched(lambda y: (torch.func.vmap(lambda row: (row * 0 - 1).sqrt())(y) + y).sum()))
    assert (finding.rule, finding.op) == ("nonfinite-loss", "add")
    assert "made by something that is not noted" in finding.message


def test_what_is_bad_on_purpose_is_not_said_to_come_from_outside() -> None:
    finding = first(watched(lambda y: (y + torch.full_like(y, math.inf)).sum()))
    assert (finding.op, finding.evidence["because"]) == ("full_like", "it wrote what it was given")


def test_a_function_that_belongs_to_no_module_is_called_as_ever() -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        if torch.overrides.has_torch_function((x,)):
            return torch.overrides.handle_torch_function(doubled, (x,), x)  # type: ignore[no-any-return,no-untyped-call]  # torch's own
        return x * 2

    class Nameless:
        """Whatever is asked of it fails."""

        __hash__ = None  # type: ignore[assignment]  # Python's way to say it

        def __getattr__(self, name: str) -> Any:
            raise ValueError(name)

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            if torch.overrides.has_torch_function((x,)):
                return torch.overrides.handle_torch_function(self, (x,), x)  # type: ignore[no-any-return,no-untyped-call]  # torch's own
            return x * 2

    doubled.__module__ = None  # type: ignore[assignment]
    finding = first(watched(lambda y: (Nameless()(doubled(y)) * 0 - 1).log().sum()))
    assert finding.where == "loss"


def attended(x: torch.Tensor, dropout: float) -> torch.Tensor:
    """Without weights that are larger elsewhere: what is not 1 or 0 in it was drawn."""
    q = torch.ones(5, 1, 1)
    one = torch.ones(1, 1)
    found = multi_head_attention_forward(q, q, x.view(5, 1, 1), 1, 1, torch.ones(3, 1), None, None, None, False, dropout, one, None)
    return found[0].flatten()


DRAWS: dict[str, Loss] = {
    "a function by whose name nobody knows": lambda y: torch._standard_gamma(y.detach()[:, 0].abs() + 0.1),
    "attention": lambda y: attended(torch.arange(1.0, 6.0) + 0 * y.detach()[:, 0], 0.5),
    "a module": lambda y: DROPPING(y.detach()[:, :1].view(1, 5, 1))[0].detach()[0, :, 0],
}
DROPPING = nn.LSTM(1, 4, 2, dropout=0.5)


def drawing(draw: Loss) -> tuple[Finding, list[int]]:
    """What is drawn decides which sample is bad: the finding, and which it was."""
    wanted: list[int] = []

    def loss(y: torch.Tensor) -> torch.Tensor:
        drawn = draw(y)
        largest = drawn == drawn.max()
        wanted[:] = wanted or largest.nonzero().flatten().tolist()
        return (y[:, 0] * 0 + torch.where(largest, -1.0, 1.0)).log().sum()

    return first(watched(loss, steps=1)), wanted


@pytest.mark.parametrize("name", DRAWS)
def test_whatever_draws_draws_the_same_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tape, "SEEN_DRAWING", set())
    _tape.KINDS.clear()
    finding, wanted = drawing(DRAWS[name])
    assert (finding.op, list(finding.evidence["samples"]), finding.evidence["exact"]) == ("log", wanted, True)


def test_a_function_that_begins_to_draw_is_not_said_to_be_exact_and_is_so_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tape, "SEEN_DRAWING", set())
    _tape.KINDS.clear()

    def quietly(y: torch.Tensor) -> torch.Tensor:
        return (attended(y[:, 0], 0.0) - y[:, 0]).sum()

    assert hs.diagnose(watched(quietly)).findings == ()
    finding, _ = drawing(DRAWS["attention"])
    assert finding.evidence["exact"] is False
    assert "multi_head_attention_forward drew other random numbers" in finding.evidence["notes"][0]
    finding, wanted = drawing(DRAWS["attention"])
    assert (list(finding.evidence["samples"]), finding.evidence["exact"]) == (wanted, True)


def after_many(y: torch.Tensor) -> torch.Tensor:
    scaled = y
    for _ in range(_tape.MAX_CALLS + 100):
        scaled = scaled * 1.0001
    return (scaled * 0 - 1).sqrt().sum()


def beside_many(y: torch.Tensor) -> torch.Tensor:
    target, scaled = torch.ones(5, 3), y
    for _ in range(_tape.MAX_CALLS + 100):
        scaled = scaled * 1.0001
    return scaled.sum() + (target - 2).sqrt().sum()


def backward_of_many(y: torch.Tensor) -> torch.Tensor:
    total, zero = y.sum() * 0, y * 0
    for _ in range(_tape.MAX_CALLS):
        total += y.mean()
    return total + (total.detach() * 0 + zero).sqrt().sum()


@pytest.mark.parametrize(("loss", "phase"), [(after_many, "forward"), (beside_many, "forward"), (backward_of_many, "backward")])
def test_a_fault_behind_more_calls_than_are_kept_is_named(loss: Loss, phase: str) -> None:
    finding = first(watched(loss, steps=1))
    assert (finding.op, finding.phase, finding.where, finding.evidence["exact"]) == ("sqrt", phase, "loss", True)
    assert finding.source is not None
    assert ".sqrt()" in finding.source["code"]


def test_of_a_fault_whose_call_is_gone_nothing_else_is_accused() -> None:
    def loss(y: torch.Tensor) -> torch.Tensor:
        bad = (y * 0 - 1).sqrt()
        for _ in range(_tape.MAX_CALLS + 100):
            bad = bad * 1.0001
        return bad.sum()

    finding = first(watched(loss, steps=1))
    assert (finding.rule, finding.op) == ("nonfinite-loss", None)
