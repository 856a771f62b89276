"""Where units are, which positions count, which calls are one, and what a layer's units are read behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import hookscope as hs

torch.manual_seed(0)


def test_units_are_channels_behind_convolutions_and_features_behind_linear_layers() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 4))
    analysis = hs.analyze(model, torch.randn(5, 3, 8, 8), "*")
    assert {layer.name: (layer.units, layer.positions) for layer in analysis} == {
        "0": (6, 180),
        "1": (6, 180),
        "2": (6, 180),
        "3": (6, 45),
        "4": (54, 5),
        "5": (4, 5),
    }


def test_channels_last_gives_the_same_numbers() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 20, 3), nn.ReLU()), torch.randn(5, 3, 8, 8)
    one = hs.analyze(model, x, "*")
    other = hs.analyze(model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last), "*")
    for layer in one:
        np.testing.assert_allclose(layer.stats.m4, other[layer.name].stats.m4, rtol=1e-4)
        assert layer.units == other[layer.name].units == 20


def test_after_patches_are_made_into_tokens_units_are_the_last_dimension() -> None:
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.drop, self.norm = nn.Conv2d(3, 8, 4, 4), nn.Dropout(0.1), nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.drop(self.patch(x).flatten(2).transpose(1, 2)))

    analysis = hs.analyze(Patches(), torch.randn(2, 3, 16, 16))
    assert {layer.name: layer.units for layer in analysis} == {"patch": 8, "drop": 8, "norm": 8, "(root)": 8}


@pytest.mark.parametrize("dim", [1, {"*": 1}, {nn.Identity: 1}])
def test_the_dimension_of_the_units_can_be_stated(dim: Any) -> None:
    model = nn.Sequential(nn.Identity())
    assert hs.analyze(model, torch.randn(2, 3, 5), "*")["0"].units == 5
    assert hs.analyze(model, torch.randn(2, 3, 5), "*", dim=dim)["0"].units == 3
    with pytest.raises(hs.UsageError, match=r"dim=3 is no dimension of 0:output, which has the shape \(2, 3, 5\)"):
        hs.analyze(model, torch.randn(2, 3, 5), "*", dim=3)
    with pytest.raises(hs.SelectionError, match="did you mean"):
        hs.analyze(model, torch.randn(2, 3, 5), "*", dim={"00": 1})


class Tagger(nn.Module):
    """Embeds, mixes over time, tags; the last layer sees batch and time flattened into one."""

    def __init__(self, *, batch_first: bool = True) -> None:
        super().__init__()
        self.token, self.mix = nn.Embedding(9, 6), nn.LSTM(6, 5, batch_first=batch_first)
        self.norm, self.conv, self.tag = nn.LayerNorm(5), nn.Conv1d(5, 4, 1), nn.Linear(5, 3)
        self.first = batch_first

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.token(input_ids)
        x = self.norm(self.mix(x if self.first else x.transpose(0, 1))[0])
        self.conv((x if self.first else x.transpose(0, 1)).transpose(1, 2))
        return self.tag(x.flatten(0, 1))


@pytest.mark.parametrize("batch_first", [True, False])
def test_padding_is_not_counted(batch_first: bool) -> None:
    """What is kept of each layer is what an unpadded run of each sequence gives."""
    model = Tagger(batch_first=batch_first).eval()
    ids, lengths = torch.randint(9, (4, 7)), [7, 3, 5, 1]
    mask = (torch.arange(7) < torch.tensor(lengths)[:, None]).long()
    analysis = hs.analyze(model, {"input_ids": ids, "attention_mask": mask})
    singly = hs.analyze(model, [ids[i : i + 1, :n] for i, n in enumerate(lengths)], forward=lambda model, x: model(x))
    names = {"token", "norm", "conv", "mix[0]", *(["tag"] if batch_first else [])}  # time first, the flattened rows do not follow the mask
    for name in names:
        assert analysis[name].positions == 16, name
        np.testing.assert_allclose(analysis[name].stats.mean, singly[name].stats.mean, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(analysis[name].stats.m2, singly[name].stats.m2, rtol=1e-5)
        assert analysis[name].participation_ratio == pytest.approx(singly[name].participation_ratio, rel=1e-5)


def test_a_mask_is_a_key_a_function_or_none() -> None:
    model, mask = Tagger(), torch.ones(2, 4).long()
    mask[0, 1:] = 0
    batch = {"input_ids": torch.randint(9, (2, 4)), "attention_mask": mask, "keep": 1 - mask}

    def count(mask: Any) -> int:
        return hs.analyze(model, batch, "norm", mask=mask)["norm"].positions

    assert [count(None), count("keep"), count(False), count(lambda b: b["attention_mask"].bool())] == [5, 3, 8, 5]
    with pytest.raises(hs.UsageError, match=r"mask='kep' is no key of the batch.*did you mean 'keep'"):
        count("kep")
    with pytest.raises(hs.UsageError, match="the mask is a list"):
        count(lambda b: [1])


def test_recurrent_layers_give_a_row_for_each_tensor_and_packed_ones_have_no_padding() -> None:
    lstm = nn.LSTM(3, 4, batch_first=True)
    analysis = hs.analyze(lstm, torch.randn(2, 5, 3))
    assert {layer.name: (layer.units, layer.positions) for layer in analysis} == {
        "(root)[0]": (4, 10),
        "(root)[1][0]": (4, 2),
        "(root)[1][1]": (4, 2),
    }
    assert [layer.name for layer in hs.analyze(lstm, torch.randn(2, 5, 3), "(root):output[1][1]")] == ["(root)[1][1]"]
    packed: PackedSequence = pack_padded_sequence(torch.randn(2, 5, 3), [5, 2], batch_first=True)
    assert hs.analyze(lstm, [packed], forward=lambda model, p: model(p))["(root)"].positions == 7


class Reused(nn.Module):
    """One ReLU in two places, one linear layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.fc(self.act(self.fc(x)) - 100))


def test_calls_of_weights_are_one_place_and_those_of_an_activation_each_its_own() -> None:
    model = Reused()
    analysis = hs.analyze(model, torch.randn(6, 4))
    assert {layer.name: layer.positions for layer in analysis} == {"fc": 12, "act": 6, "act@1": 6, "(root)": 6}
    assert analysis["(root)"].same_as == "act@1"
    picked = hs.analyze(model, torch.randn(6, 4), ["fc@1", "act@0"])
    assert {layer.name: layer.positions for layer in picked} == {"fc@1": 6, "act": 6}


def test_an_activation_that_runs_a_hundred_times_has_a_bounded_number_of_rows() -> None:
    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.Tanh()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(100):
                x = self.act(x)
            return x

    analysis = hs.analyze(Unrolled(), torch.randn(6, 4), "act")
    assert (len(analysis), analysis["act@31"].positions) == (32, 6 * 69)


def biased() -> nn.Linear:
    """Units 0 and 1 follow the input; unit 2 is below 0 whatever comes."""
    layer = nn.Linear(2, 3)
    layer.load_state_dict({"weight": torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), "bias": torch.tensor([0.0, 0.0, -1.0])})
    return layer


@pytest.mark.parametrize("between", [[], [nn.Identity()], [nn.LayerNorm(3, elementwise_affine=False)], [nn.Dropout(0.5), nn.Identity()]])
@pytest.mark.parametrize("inplace", [True, False])
def test_a_layer_is_read_behind_the_activation_that_takes_its_output(between: list[nn.Module], inplace: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(biased(), *between, nn.ReLU(inplace=inplace))
    x = torch.randn(200, 2)
    analysis, last = hs.analyze(model, x, "*"), str(len(between) + 1)
    layer = analysis["0"]
    assert layer.after is not None
    assert layer.after.name == last
    np.testing.assert_array_equal(layer.sparsity, (model.eval()(x) == 0).double().mean(0).numpy())
    np.testing.assert_allclose(layer.stats.min[2], -1.0)  # its own numbers are those from before the activation, also if it writes in place
    if not between:
        assert layer.dead.tolist() == [False, False, True]
        assert hs.analyze(model, x, "0")["0"].dead.tolist() == [False, False, True]  # also where the activation is not selected


def test_a_functional_activation_shows_in_what_is_seen_next() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.drop = biased(), nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.drop(functional.relu(self.fc(x)))

    analysis = hs.analyze(Functional(), torch.randn(200, 2), ["fc", "drop"])
    assert not analysis["fc"].dead.any()
    assert analysis["drop"].dead.tolist() == [False, False, True]


def test_a_unit_of_a_smooth_rectifier_that_never_exceeds_0_is_dead_and_one_of_a_leaky_one_is_not() -> None:
    x = torch.randn(200, 2)
    for act, dead in ((nn.GELU(), True), (nn.SiLU(), True), (nn.LeakyReLU(), False), (nn.Tanh(), False)):
        assert hs.analyze(nn.Sequential(biased(), act), x, "*")["1"].dead.tolist() == [False, False, dead], act


def test_what_later_layers_write_in_place_does_no_harm() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x).zero_()

    model, x = InPlace(), torch.randn(40, 3)
    analysis = hs.analyze(model, x)
    np.testing.assert_allclose(analysis["fc"].stats.mean, model.fc(x).mean(0).detach().numpy(), rtol=1e-4)
    assert analysis["(root)"].same_as is None
    assert (analysis["(root)"].stats.max == 0).all()
