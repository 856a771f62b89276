"""`ablate`: effects against arithmetic by hand; everything as it was afterwards."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import hookscope as hs


def linear(rows: list[list[float]]) -> nn.Linear:
    layer = nn.Linear(len(rows[0]), len(rows), bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows))
    return layer


def two() -> nn.Module:
    """y = [1, 10, 100] . x, summed with x's first number times 1000 by a way of its own."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide = linear([[1.0, 0, 0], [0, 10.0, 0], [0, 0, 100.0]])
            self.side = linear([[1000.0, 0, 0]])
            self.idle = nn.ModuleList([nn.Linear(3, 3)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.wide(x).sum(-1, keepdim=True) + self.side(x)

    return Two()


def total(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).sum()


def test_sites_are_ranked_by_their_effect() -> None:
    found = hs.ablate(two(), ["wide", "side", "(root):input"], total, [torch.ones(1, 3)])
    assert found.baseline == 1111
    assert [(row.site, row.unit, row.value, row.effect) for row in found] == [
        ("(root):input", None, 0, -1111),
        ("side:output", None, 111, -1000),
        ("wide:output", None, 1000, -111),
    ]
    assert len(found) == 3
    assert repr(found) == (
        "without any edit: 1111\n"
        "site          metric  effect\n"
        "(root):input       0   -1111\n"
        "side:output      111   -1000\n"
        "wide:output     1000    -111"
    )


def test_units_are_taken_one_by_one_and_ops_may_be_others() -> None:
    model, data = two(), [torch.ones(1, 3)]
    each = hs.ablate(model, "wide", total, data, units="each")
    assert [(row.unit, row.effect) for row in each] == [(2, -100), (1, -10), (0, -1)]
    some = hs.ablate(model, "wide", total, data, units=slice(0, 2), op=hs.scale(3.0))
    assert [(row.unit, row.value) for row in some] == [(1, 1111 + 20), (0, 1111 + 2)]
    assert hs.ablate(model, "wide", total, data, units=[0, -1])[0].unit == 2
    part = hs.ablate(model, "wide", total, data, op=hs.zero().at(units=[0, 1]))
    assert part[0].effect == -11


def test_the_metric_is_averaged_over_batches_or_over_all_samples() -> None:
    data = [torch.ones(1, 3), 2 * torch.ones(3, 3)]
    by_batch = hs.ablate(two(), "wide", lambda m, x: m(x).mean().item(), data)
    assert by_batch.baseline == (1111 + 2222) / 2
    by_sample = hs.ablate(two(), "wide", lambda m, x: m(x), data)
    assert by_sample.baseline == (1111 + 3 * 2222) / 4
    assert by_sample[0].effect == -(111 + 3 * 222) / 4


def test_a_loader_that_can_be_run_through_once_is_kept() -> None:
    found = hs.ablate(two(), ["wide", "side"], total, (torch.ones(1, 3) for _ in range(2)))
    assert [row.effect for row in found] == [-1000, -111]


def test_what_never_runs_is_left_out_and_all_of_it_is_an_error() -> None:
    found = hs.ablate(two(), "**", total, [torch.ones(1, 3)])
    assert sorted(row.site for row in found) == ["(root):output", "side:output", "wide:output"]
    with pytest.raises(hs.UsageError, match=r"nothing that 'idle\.0' matches ran: choose modules that are called"):
        hs.ablate(two(), "idle.0", total, [torch.ones(1, 3)])


def test_random_states_buffers_modes_and_hooks_are_afterwards_what_they_were() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    state = torch.get_rng_state()
    found = hs.ablate(model, ["0", "1", "3"], total, [torch.randn(6, 3)], op=hs.scale(1.0))
    assert [row.effect for row in found] == [0, 0, 0]  # the same dropout in every run
    assert torch.equal(torch.get_rng_state(), state) is False  # the batch of the line above was drawn before
    state = torch.get_rng_state()
    hs.ablate(model, "0", total, [torch.ones(6, 3)])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    assert model.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_a_metric_that_raises_leaves_no_hook() -> None:
    model = two()
    calls = []

    def metric(model: nn.Module, x: torch.Tensor) -> float:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return model(x).sum().item()

    with pytest.raises(KeyboardInterrupt):
        hs.ablate(model, ["wide", "side"], metric, [torch.ones(1, 3)])
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_effects_that_are_not_finite_come_first() -> None:
    def metric(model: nn.Module, x: torch.Tensor) -> float:
        found = model(x).sum().item()
        return math.nan if found == 111 else found

    found = hs.ablate(two(), ["wide", "side"], metric, [torch.ones(1, 3)])
    assert math.isnan(found[0].effect)
    assert found[1].effect == -111


def test_the_table_is_one_of_pandas() -> None:
    pytest.importorskip("pandas")
    frame = hs.ablate(two(), "wide", total, [torch.ones(1, 3)], units="each").to_pandas()
    assert list(frame.columns) == ["site", "unit", "value", "effect"]
    assert frame["effect"].tolist() == [-100, -10, -1]


def test_a_long_table_says_how_many_more_there_are() -> None:
    found = hs.ablate(nn.Sequential(nn.Identity()), "0", total, [torch.ones(1, 23)], units="each")
    assert repr(found).splitlines()[-1] == "and 3 more"


WRONG = {
    "metric returned str: return a number, or a tensor with one for each sample": {"metric": lambda m, x: "x"},
    "loader has no batch: give a list of batches, or a DataLoader": {"loader": []},
    "units='all': give 'each', numbers, a slice, or None for whole sites": {"units": "all"},
    "wide:output has no unit 99: there are 3, numbered from 0 to 2": {"units": [0, 99]},
    "units=slice(3, 9, None) picks none of the 3 units": {"units": slice(3, 9)},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_use_is_refused(message: str) -> None:
    given = {"metric": total, "loader": [torch.ones(1, 3)], **WRONG[message]}
    with pytest.raises(hs.UsageError) as error:
        hs.ablate(two(), "wide", **given)
    assert str(error.value) == message
