"""`diff` on torch's own modules: faults, told apart and explained."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
import torch.distributed
from torch import nn

import hookscope as hs


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))


def cnn() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(256, 2))


def rows(seed: int = 1) -> torch.Tensor:
    return torch.randn(9, 6, generator=torch.Generator().manual_seed(seed))


def mean_square(model: nn.Module, batch: Any) -> torch.Tensor:
    out: torch.Tensor = model(batch).square().mean()
    return out


def test_train_against_eval_of_a_batch_norm_is_named() -> None:
    model = cnn()
    found = hs.diff(model, copy.deepcopy(model).eval(), torch.randn(4, 3, 12, 12))
    assert found.first is not None
    assert (found.first.a, found.first.likely[0]) == ("1", "a is in training mode and b in evaluation mode")


@pytest.mark.parametrize("eps", [1e-6, 1e-12])
def test_a_small_eps_is_found_in_float32_and_lost_in_bfloat16(eps: float) -> None:
    model = mlp()
    other = copy.deepcopy(model)
    other[1].eps = eps
    found = hs.diff(model, other, rows())
    assert found.first is not None
    assert (found.first.a, found.first.likely[0]) == ("1", f"eps is 1e-05 in a and {eps!r} in b")
    assert hs.diff(model, other.bfloat16(), rows(), batch_b=rows().bfloat16())


def test_inherited_and_added_errors_are_told_apart() -> None:
    model = mlp()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].bias[3] += 0.5
    found = hs.diff(model, other, rows())
    assert [(row.a, row.status) for row in found][:4] == [("0", "added"), ("1", "inherited"), ("2", "inherited"), ("3", "inherited")]
    assert found.sites[2].added is not None
    assert found.sites[2].added.relative < 1e-7 < found.sites[2].total.relative  # type: ignore[union-attr]
    assert found.first is not None
    assert found.first.likely[0].startswith("parameter 0.bias differs")


def test_a_second_fault_is_told_from_what_the_first_one_hands_on() -> None:
    model = mlp()
    other = copy.deepcopy(model)
    other[1].eps = 1e-3
    other[2] = nn.ReLU()
    found = hs.diff(model, other, rows())
    assert [row.a for row in found if row.status == "added"] == ["1", "2", "(root)"]


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda y: y * 0.5, "b is a times 0.5 = 1/2"),
        (lambda y: y.roll(1, 0), "one position later along axis 0"),
        (lambda y: y.half().float(), "every value of b is a float16 number"),
        (lambda y: y + 1, "the difference is the same in every row"),
        (lambda y: torch.where(torch.arange(y.numel()).view(y.shape) % 5 == 0, 0.0, y / 0.8), "dropout is on in b and off in a"),
    ],
)
def test_a_likely_cause_is_read_from_the_outputs(change: Any, cause: str) -> None:
    class Last(nn.Module):
        def __init__(self, change: Any) -> None:
            super().__init__()
            self.change = [change]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.change[0](x)
            return out

    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))
    found = hs.diff(nn.Sequential(Last(lambda y: y)), nn.Sequential(Last(change)), x)
    assert found.first is not None
    assert any(cause in likely for likely in found.first.likely), found.first.likely


def test_nan_at_the_same_places_is_equal_and_on_one_side_a_divergence() -> None:
    class Root(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sqrt()

    class Guarded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.clamp_min(0).sqrt()

    x = torch.tensor([[4.0, -1.0, 9.0]])
    assert hs.diff(nn.Sequential(Root()), nn.Sequential(Root()), x).verdict.startswith("equal to the last bit")
    found = hs.diff(nn.Sequential(Guarded()), nn.Sequential(Root()), x)
    assert found.first is not None
    assert found.first.a == "0"
    assert found.first.likely[0] == "NaN or Inf on one side only: 1 in b"
    assert json.loads(found.to_json())["agrees"] is False


def test_a_wrong_backward_is_found_where_outputs_agree() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return 2 * grad

    class Middle(nn.Module):
        def __init__(self, *, wrong: bool) -> None:
            super().__init__()
            self.wrong = wrong

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Twice.apply(x) if self.wrong else x.clone()  # type: ignore[no-any-return,no-untyped-call]

    model = mlp()
    one, other = (nn.Sequential(*copy.deepcopy(model)[:2], Middle(wrong=wrong), *copy.deepcopy(model)[2:]) for wrong in (False, True))
    assert hs.diff(one, other, rows())
    found = hs.diff(one, other, rows(), loss_fn=mean_square)
    assert not found
    assert "first divergence in the backward: gradient at the output of 1 differs by 1.0e+00" in found.verdict
    assert [p.grad for p in other.parameters()] == [None] * 6


def test_an_own_tolerance_is_kept_to() -> None:
    model = mlp()
    other = copy.deepcopy(model)
    other[1].eps = 1e-3
    assert hs.diff(model, other, rows(), tol=0.1)
    found = hs.diff(model, other, rows(), tol=1e-9)
    assert "where the tolerance is 1.0e-09" in found.verdict
    for tol in (-1, True, "loose", float("nan")):
        with pytest.raises(hs.UsageError, match="is no tolerance: give a relative L2 error"):
            hs.diff(model, other, rows(), tol=tol)  # type: ignore[arg-type]


def test_calls_of_a_shared_module_are_compared_one_by_one() -> None:
    class Loop(nn.Module):
        def __init__(self, last: float) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.cell, self.last = nn.Linear(6, 6), last

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for gain in (1.0, 1.0, self.last):
                x = torch.tanh(self.cell(x) * gain)
            return x

    found = hs.diff(Loop(1.0), Loop(1.1), rows())
    assert [(row.name, row.status) for row in found] == [
        ("cell", "equal"), ("cell@1", "equal"), ("cell@2", "equal"), ("(root)", "added"),
    ]  # fmt: skip
    assert found.first is not None
    assert found.first.likely[0] == "last is 1.0 in a and 1.1 in b"


def test_shapes_that_differ_are_a_divergence_that_names_both() -> None:
    model = mlp()
    other = copy.deepcopy(model)
    other[3] = nn.Linear(16, 5)
    found = hs.diff(model, other, rows())
    assert found.first is not None
    assert found.first.a == "3"
    assert "a's output is 9×3 and b's is 9×5" in found.verdict


def test_the_printed_table_has_the_verdict_and_every_site_with_its_part() -> None:
    model = mlp()
    other = copy.deepcopy(model)
    other[1].eps = 1e-3
    lines = str(hs.diff(model, other, rows())).splitlines()
    assert lines[0].startswith("first divergence at `1` (LayerNorm): adds relative error")
    assert max(map(len, lines)) <= 110
    cells = [line.split() for line in lines[lines.index("") + 2 :]]
    assert [row[-1] for row in cells] == ["equal", "added", "inherited", "inherited", "added"]
    assert cells[0] == ["0", "Linear", "0", "0", "0", cells[0][5], "equal"]
    assert cells[1][:4] == ["✗", "1", "LayerNorm", "0"]


def test_a_long_table_shows_what_adds_and_what_is_around_it() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(60)))
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[30].weight.mul_(2)
    found = hs.diff(model, other, rows())
    text = str(found)
    assert len(text.splitlines()) < 30
    assert "more sites, none of which adds anything" in text
    assert "parameter 30.weight differs by 1.0e+00" in text
    assert len(found) == 61


def test_a_layer_of_one_unit_is_compared_without_a_warning() -> None:
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    b = copy.deepcopy(a)
    b[1] = nn.GELU()
    found = hs.diff(a, b, torch.randn(256, 8))
    assert found.first is not None
    assert found.first.name == "1"
