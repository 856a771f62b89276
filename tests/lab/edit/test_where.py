"""Ops narrowed to units, heads, positions, calls and steps: what changes is that part, and nothing else does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookscope as hs


def changed(model: nn.Module, x: torch.Tensor, op: hs.Op, where: str = "(root)") -> torch.Tensor:
    """Where the output differs once it is edited."""
    plain = model(x)
    with hs.edit(model, {where: op}):
        return model(x) != plain


@pytest.mark.parametrize(
    ("layer", "shape", "axis"),
    [
        (nn.Linear(3, 4), (2, 3), 1),
        (nn.Linear(3, 4), (2, 5, 3), 2),
        (nn.Linear(3, 4), (2, 5, 6, 3), 3),
        (nn.Conv1d(3, 4, 1), (2, 3, 5), 1),
        (nn.Conv2d(3, 4, 1), (2, 3, 5, 5), 1),
        (nn.Conv2d(3, 4, 1), (3, 5, 5), 0),
        (nn.Conv3d(3, 4, 1), (2, 3, 5, 5, 5), 1),
        (nn.ConvTranspose2d(3, 4, 1), (2, 3, 5, 5), 1),
        (nn.MaxPool2d(1), (2, 4, 5, 5), 1),
        (nn.BatchNorm1d(4), (2, 4), 1),
        (nn.BatchNorm1d(4), (2, 4, 5), 1),
        (nn.GroupNorm(2, 4), (2, 4, 5), 1),
        (nn.LayerNorm(4), (2, 5, 4), 2),
        (nn.ReLU(), (2, 4), 1),
        (nn.ReLU(), (2, 5, 4), 2),
        (nn.ReLU(), (2, 4, 5, 5), 1),
    ],
)
def test_units_are_channels_behind_convolutions_and_else_the_last_axis(layer: nn.Module, shape: tuple[int, ...], axis: int) -> None:
    found = changed(layer.eval(), torch.randn(shape), hs.add(1.0).at(units=[1, -1]))
    assert found.any(dim=[i for i in range(found.dim()) if i != axis]).tolist() == [False, True, False, True]
    assert found.all(dim=[i for i in range(found.dim()) if i != axis]).tolist() == [False, True, False, True]


def test_an_axis_that_is_given_goes_before_what_the_class_says() -> None:
    found = changed(nn.ReLU(), torch.randn(2, 4, 6), hs.add(1.0).at(units=3, axis=1))
    assert found[:, 3].all()
    assert not found[:, :3].any()


def test_a_vector_lies_along_the_units() -> None:
    layer, x = nn.Conv2d(3, 4, 1), torch.randn(2, 3, 4, 4)  # as wide as there are channels
    plain = layer(x)
    with hs.edit(layer, {"(root)": hs.add(torch.arange(4.0))}):
        torch.testing.assert_close(layer(x) - plain, torch.arange(4.0)[:, None, None].expand(2, 4, 4, 4), atol=1e-5, rtol=0)
    with hs.edit(layer, {"(root)": hs.project(torch.tensor([0.0, 0.0, 1.0, 0.0]))}):
        assert layer(x)[:, 2].abs().max() == 0


def test_positions_are_those_of_the_sequence_whatever_the_layout() -> None:
    assert changed(nn.Linear(3, 4), torch.randn(2, 5, 3), hs.add(1.0).at(positions=-1)).any(2).any(0).tolist() == [False] * 4 + [True]
    found = changed(nn.Conv1d(3, 4, 1), torch.randn(2, 3, 5), hs.add(1.0).at(positions=slice(0, 2)))
    assert found.any(1).any(0).tolist() == [True, True, False, False, False]
    rnn = nn.Sequential(nn.LSTM(3, 4))
    x = torch.randn(5, 2, 3)  # the sequence first
    plain = rnn(x)[0]
    with hs.edit(rnn, {"0": hs.zero().at(positions=1)}):
        assert ((rnn(x)[0] != plain).any(2).any(1)).tolist() == [False, True, False, False, False]


def test_units_and_positions_together_are_where_both_are() -> None:
    found = changed(nn.Linear(3, 4), torch.randn(2, 5, 3), hs.add(1.0).at(units=[0, 2], positions=[1, -1]))
    assert found.sum().item() == 2 * 2 * 2
    assert found[:, [1, 4]][:, :, [0, 2]].all()


def test_a_position_that_a_call_does_not_have_is_passed_over_and_told_if_it_never_came() -> None:
    model = nn.Sequential(nn.Linear(3, 4))
    with hs.edit(model, {"0": hs.zero().at(positions=4)}) as e:
        assert not (model(torch.randn(2, 5, 3))[:, 4]).any()
        assert model(torch.randn(2, 3, 3)).all()
        assert e.counts == {"0:output": 1}
    e = hs.edit(model, {"0": hs.zero().at(positions=9)})
    model(torch.randn(2, 5, 3))
    with pytest.warns(hs.HookscopeWarning, match=r"hs.zero\(\).at\(positions=9\) on '0' never acted"):
        e.close()


class Attention(nn.Module):
    def __init__(self, **facts: int) -> None:
        super().__init__()
        self.proj = nn.Linear(6, 6)
        for name, value in facts.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(x)


@pytest.mark.parametrize("facts", [{"num_heads": 3}, {"n_head": 3}, {"head_dim": 2}, {"head_dim": 2, "num_heads": 99}])
def test_heads_are_equal_parts_of_the_units_as_the_module_around_says(facts: dict[str, int]) -> None:
    found = changed(nn.Sequential(Attention(**facts)), torch.randn(2, 5, 6), hs.add(1.0).at(heads=1), "0.proj")
    assert found.any(0).any(0).tolist() == [False, False, True, True, False, False]


def test_heads_that_do_not_divide_the_units_are_refused() -> None:
    model = nn.Sequential(Attention(num_heads=4))
    hs.edit(model, {"0.proj": hs.zero().at(heads=1)})
    with pytest.raises(hs.UsageError, match=r"no module around 0\.proj:output says how its 6 units divide into heads"):
        model(torch.randn(2, 6))


class Loop(nn.Module):
    """Calls one layer three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.layer(x) for _ in range(3)])


@pytest.mark.parametrize(
    ("selection", "op", "first", "second"),
    [
        ("layer", hs.add(1.0).at(calls=1), [0, 1, 0], [0, 1, 0]),
        ("layer@2", hs.add(1.0), [0, 0, 1], [0, 0, 1]),
        ("layer", hs.add(1.0).at(calls=slice(1, None)), [0, 1, 1], [0, 1, 1]),
        ("layer", hs.add(1.0).at(steps=1), [0, 0, 0], [1, 1, 1]),
        ("layer", hs.add(1.0).at(steps=slice(1, None), calls=[0, 2]), [0, 0, 0], [1, 0, 1]),
        ("layer@0", hs.add(1.0).at(steps=0), [1, 0, 0], [0, 0, 0]),
        ("layer:input", hs.add(1.0).at(calls=2), [0, 0, 1], [0, 0, 1]),
    ],
)
def test_calls_count_within_a_forward_of_the_model_and_steps_count_those(selection: str, op: hs.Op, first: list, second: list) -> None:
    model = Loop()
    with hs.edit(model, {selection: op}):
        assert model(torch.zeros(())).tolist() == first
        assert model(torch.zeros(())).tolist() == second


def test_a_part_of_the_model_that_is_called_by_itself_has_forwards_of_its_own() -> None:
    model = nn.ModuleDict({"net": Loop()})  # its own forward is never called, as that of a Lightning module
    with hs.edit(model, {"net.layer": hs.add(1.0).at(calls=1, steps=1)}):
        assert model["net"](torch.zeros(())).tolist() == [0, 0, 0]
        assert model["net"](torch.zeros(())).tolist() == [0, 1, 0]


def test_a_forward_that_raised_is_over_for_the_count() -> None:
    model = Loop()
    with hs.edit(model, {"layer": hs.add(1.0).at(calls=0, steps=[1, 3])}):
        with pytest.raises(TypeError):
            model(None)
        assert model(torch.zeros(())).tolist() == [1, 0, 0]
        handle = model.layer.register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(torch.zeros(()))
        handle.remove()
        assert model(torch.zeros(())).tolist() == [1, 0, 0]


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_module_used_in_two_places_is_counted_through_both() -> None:
    layer = nn.Identity()
    model = nn.ModuleList([nn.Sequential(layer), nn.Sequential(layer)])
    with hs.edit(model, {"0.0": hs.add(1.0).at(steps=1)}):
        assert [model[i](torch.zeros(())).item() for i in (1, 1, 0)] == [0, 1, 0]


def test_a_call_that_never_came_is_told_when_the_edit_is_closed() -> None:
    model = Loop()
    e = hs.edit(model, {"layer": [hs.add(1.0), hs.zero().at(calls=7)]})
    model(torch.zeros(()))
    with pytest.warns(hs.HookscopeWarning) as record:
        e.close()
    [warning] = record
    assert str(warning.message) == (
        "hookscope: hs.zero().at(calls=7) on 'layer' never acted: no such call, position or gradient came by while the edit was on"
    )
    assert warning.filename == __file__
