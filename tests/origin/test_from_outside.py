"""What comes in bad from outside, what is written through views, and functions that the tape knows nothing of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss

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


def test_what_is_bad_on_purpose_is_not_said_to_come_from_outside() -> None:
    finding = first(watched(lambda y: (y + torch.full_like(y, math.inf)).sum()))
    assert (finding.op, finding.evidence["because"]) == ("full_like", "it wrote what it was given")


def test_a_function_that_belongs_to_no_module_is_called_as_ever() -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        if torch.overrides.has_torch_function((x,)):
            return torch.overrides.handle_torch_function(doubled, (x,), x)  # type: ignore[no-any-return,no-untyped-call]
        return x * 2

    class Nameless:
        """Whatever is asked of it fails."""

        __hash__ = None  # type: ignore[assignment]

        def __getattr__(self, name: str) -> Any:
            raise ValueError(name)

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            if torch.overrides.has_torch_function((x,)):
                return torch.overrides.handle_torch_function(self, (x,), x)  # type: ignore[no-any-return,no-untyped-call]
            return x * 2

    doubled.__module__ = None  # type: ignore[assignment]
    finding = first(watched(lambda y: (Nameless()(doubled(y)) * 0 - 1).log().sum()))
    assert finding.where == "loss"
