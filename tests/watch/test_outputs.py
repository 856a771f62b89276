"""Whatever a module returns is read: structures, views, integers, nothing at all; and what is done to it later changes no number."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import hookscope as hs

from ._oracle import Twin, check, compare, recorded, squares, stats_of


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def in_place_by_hand(model: Any, twin: Twin, x: torch.Tensor) -> torch.Tensor:
    x = twin.see("0:output", model[0](x))
    x = twin.see("1:output", functional.relu(x))
    x = twin.see("2:output", model[2](x))
    return twin.see("(root):output", twin.see("3:output", functional.leaky_relu(x)))


def test_a_layer_before_an_in_place_activation_is_read_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.BatchNorm1d(8), nn.LeakyReLU(inplace=True))
    run = compare(model, in_place_by_hand, torch.randn(6, 4))
    assert run["0:output", "min"].values[0] < 0
    assert run["1:output", "min"].values[0] == 0


def test_a_functional_in_place_operation_after_a_module_does_not_reach_its_rows() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x)
            y += 1
            y[:, 0] = 0
            return self.b(y)

    def by_hand(model: Any, twin: Twin, x: torch.Tensor) -> torch.Tensor:
        y = twin.see("a:output", model.a(x)) + 1
        return twin.see("(root):output", twin.see("b:output", model.b(y * torch.tensor([0.0, 1, 1, 1]))))

    compare(Net(), by_hand, torch.randn(3, 4))


def test_views_are_read_with_the_elements_that_they_show() -> None:
    class View(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.transpose(1, 2)[:, ::2, 1:]

    class Repeat(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(2, keepdim=True).expand(-1, -1, 5)

    model = nn.Sequential(nn.Linear(4, 6), View(), Repeat(), nn.Flatten(0, 1))

    def by_hand(model: Any, twin: Twin, x: torch.Tensor) -> torch.Tensor:
        for name, module in model.named_children():
            x = twin.see(f"{name}:output", module(x))
        return twin.see("(root):output", x)

    run = compare(model, by_hand, torch.randn(2, 3, 4))
    assert run["2:output", "count"].values[0] == 2 * 3 * 5


def test_a_view_that_is_written_to_later_has_its_values_and_no_wrong_gradient() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Flatten(), nn.ReLU(inplace=True), nn.Linear(12, 2))
    twin, x, (first, *_, last) = Twin(), torch.randn(3, 2, 4), copy.deepcopy(model)
    with hs.watch(model) as watched:
        squares(model(x)).backward()
    y = twin.see("1:output", twin.see("0:output", first(x)).flatten(1))
    squares(twin.see("(root):output", twin.see("3:output", last(twin.see("2:output", y.relu()))))).backward()
    # Torch drops what was hooked on a view when that is written to: of the Flatten there is no gradient to be had.
    want = {key: stats for key, stats in twin.rows(0).items() if key[2] != "1:output_grad"}
    check(recorded(watched.run, kinds=("output", "output_grad")), want)


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_on_sequences_before_an_in_place_activation_has_its_gradient(bias: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 6, bias=bias), nn.ReLU(inplace=True), nn.Linear(6, 2, bias=bias), nn.LeakyReLU(inplace=True))
    run = compare(model, in_place_by_hand, torch.randn(3, 5, 4))
    assert run["0:output_grad", "count"].values[0] == 3 * 5 * 6


def test_a_container_that_returns_its_childs_tensor_has_its_childs_rows() -> None:
    model = nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(3, 3))), nn.Identity(), nn.Dropout(0.0))
    with hs.watch(model, select="**:output,output_grad") as watched:
        squares(model(torch.randn(2, 3))).backward()
    rows = recorded(watched.run, kinds=("output", "output_grad"))
    for kind in ("output", "output_grad"):
        innermost = rows[0, 0, f"0.0.0:{kind}", 0]
        assert innermost.sumsq > 0
        assert {rows[0, 0, f"{path}:{kind}", 0] for path in ("0.0", "0", "1")} == {innermost}
    assert len(rows) == 2 * 6


@pytest.mark.parametrize("selection", ["0:output", "0:output_grad", "(root):output", "(root):output_grad"])
def test_a_container_and_its_child_do_not_depend_on_each_others_selection(selection: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    x, other = torch.randn(2, 3), nn.Sequential(nn.Linear(3, 3))
    other.load_state_dict(model.state_dict())
    y = other(x)
    y.retain_grad()
    squares(y).backward()
    with hs.watch(model, select=selection) as watched:
        squares(model(x)).backward()
    check(
        recorded(watched.run, kinds=("output", "output_grad")),
        {(0, 0, selection, 0): stats_of(y.grad if selection.endswith("_grad") and y.grad is not None else y)},
    )


def test_integers_booleans_and_empty_tensors_are_counted_too() -> None:
    class Choice(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"y": x.tanh(), "best": x.argmax(1), "mask": x > 0, "none": x[:0]}

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map, self.choice = nn.Linear(4, 5), Choice()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.choice(self.map(x))
            return torch.cat([out["y"], out["none"]])

    def by_hand(model: Any, twin: Twin, x: torch.Tensor) -> torch.Tensor:
        y = twin.see("map:output", model.map(x))
        twin.see('choice:output["best"]', y.argmax(1))
        twin.see('choice:output["mask"]', y > 0)
        y, none = twin.see('choice:output["y"]', y.tanh()), twin.see('choice:output["none"]', y[:0])
        return twin.see("(root):output", torch.cat([y, none]))

    run = compare(Net(), by_hand, torch.randn(3, 4))
    assert {site.name: site.dtype for site in run.sites}['choice:output["mask"]'] == "bool"
    assert run['choice:output["none"]', "count"].values.tolist() == [0.0, 0.0]


def test_a_module_that_returns_no_tensor_leaves_no_row_and_does_no_harm() -> None:
    class Logger(nn.Module):
        def forward(self, x: torch.Tensor) -> None:
            return None

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map, self.logger = nn.Linear(4, 2), Logger()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.map(x)
            self.logger(y)
            return y

    def by_hand(model: Any, twin: Twin, x: torch.Tensor) -> torch.Tensor:
        return twin.see("(root):output", twin.see("map:output", model.map(x)))

    compare(Net(), by_hand, torch.randn(3, 4))


def test_an_output_that_was_made_in_inference_mode_is_read() -> None:
    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.inference_mode():
                return self.map(x)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = Backbone().requires_grad_(False), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.backbone(x).clone())

    def by_hand(model: Any, twin: Twin, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            features = twin.see("backbone:output", model.backbone.map(x))
        return twin.see("(root):output", twin.see("head:output", model.head(features)))

    compare(Net(), by_hand, torch.randn(3, 4))
