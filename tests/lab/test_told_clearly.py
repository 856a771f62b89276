"""What used to be done silently is noticed, refused or told in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookscope as hs

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))


class Scaled(nn.Module):
    """A factor in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.factor = nn.Linear(4, 3), nn.LayerNorm(3), 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.fc(x)) * self.factor


@pytest.fixture
def model() -> Scaled:
    torch.manual_seed(0)
    return Scaled().eval()


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(X), batch_size=4)


def test_a_directory_of_features_knows_plain_attributes(model: Scaled, tmp_path: Path) -> None:
    hs.extract(model, loader(), "norm", to=tmp_path / "f")
    hs.extract(model, loader(), "norm", to=tmp_path / "f")  # the same again is what is there
    model.norm.eps = 1e-3
    with pytest.raises(hs.FeaturesError, match=r"another extraction: attributes was '\w+' and is '\w+'"):
        hs.extract(model, loader(), "norm", to=tmp_path / "f")
    model.norm.eps, model.factor = 1e-5, 2.0
    with pytest.raises(hs.FeaturesError, match="attributes was"):
        hs.extract(model, loader(), "norm", to=tmp_path / "f")
    model.factor = 1.0
    hs.extract(model, loader(), "norm", to=tmp_path / "f")


@pytest.mark.filterwarnings("ignore:hookscope. hs.add.*never acted")
def test_a_directory_of_features_knows_the_edits_that_are_on_and_the_numbers_in_them(model: Scaled, tmp_path: Path) -> None:
    steer = torch.tensor([1.0, 0.0, 0.0])
    with hs.edit(model, {"fc": hs.add(steer)}):
        hs.extract(model, loader(), "norm", to=tmp_path / "f")
    with hs.edit(model, {"fc": hs.add(steer.clone())}):
        hs.extract(model, loader(), "norm", to=tmp_path / "f")
        with pytest.raises(hs.FeaturesError, match=r"edits was \['fc:output: hs.add"), hs.edit(model, {"norm": hs.zero()}):
            hs.extract(model, loader(), "norm", to=tmp_path / "f")
    with pytest.raises(hs.FeaturesError, match=r"edits was \['fc:output: hs.add\(tensor\[3\]\) \w+'\] and is \[\]"):
        hs.extract(model, loader(), "norm", to=tmp_path / "f")
    with hs.edit(model, {"fc": hs.add(steer * 2)}), pytest.raises(hs.FeaturesError, match="edits was"):
        hs.extract(model, loader(), "norm", to=tmp_path / "f")


@pytest.mark.filterwarnings("ignore:hookscope. hs.scale")
def test_an_edit_that_would_round_whole_numbers_is_refused() -> None:
    model = nn.Sequential(nn.Identity(), nn.Embedding(9, 2))
    told = r"hs.scale\(0.5\) made fractions of 0:output, which holds int64 and would lose them"
    with pytest.raises(hs.UsageError, match=told), hs.edit(model, {"0": hs.scale(0.5)}):
        model(torch.tensor([1, 2]))
    with hs.edit(model[0], {"(root)": hs.scale(2.0)}):
        assert model[0](torch.tensor([1, 2])).tolist() == [2, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e18, 1e30, 3e38])
def test_clip_norm_neither_overflows_nor_loses_small_ones(dtype: torch.dtype, size: float) -> None:
    values = torch.tensor([[3.0, 4.0], [0.0, 12.0]], dtype=torch.float64) * (size / 12)
    given = values.to(dtype)
    with hs.edit(nn.Identity(), {"(root)": hs.clip_norm(1.0)}) as edit:
        found = edit.model(given).double()
    norm = float(given.double().norm())
    wanted = given.double() * min(1.0, 1.0 / norm)
    torch.testing.assert_close(found, wanted, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=0)


def test_the_gradients_of_two_backwards_through_one_graph_add_up_as_those_of_parameters_do() -> None:
    layer = nn.Linear(3, 2)
    x = torch.randn(5, 3)
    with hs.capture(layer, ["(root):output_grad"]) as feats:
        y = layer(x)
        y.sum().backward(retain_graph=True)
        (2 * y).sum().backward()
    assert torch.equal(feats["(root):output_grad"], torch.full((5, 2), 3.0))
    assert torch.equal(layer.bias.grad, feats["(root):output_grad"].sum(0))


@pytest.mark.parametrize(("layer", "shape"), [(nn.Conv2d(3, 2, 1), (3, 4, 4)), (nn.Conv1d(3, 2, 1), (3, 5)), (nn.MaxPool2d(1), (3, 4, 4))])
def test_pooling_a_sample_without_a_batch_is_refused(layer: nn.Module, shape: tuple[int, ...]) -> None:
    with pytest.raises(hs.UsageError, match="a sample without a batch: give a batch of one"):
        hs.extract(layer, torch.randn(shape), "(root)", pool="mean")
    assert hs.extract(layer, torch.randn(1, *shape), "(root)", pool="mean")["(root)"].shape[0] == 1


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (list(range(11)), "there are 11 ids, and the dataset has 12 samples"),
        (list(range(13)), "there are 13 ids, and the dataset has 12 samples"),
        ([*"abcdefghijk", "a"], "ids name 'a' more than once"),
    ],
)
def test_ids_that_do_not_fit_are_refused_before_anything_runs(model: Scaled, tmp_path: Path, ids: list[Any], message: str) -> None:
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(hs.UsageError, match=message):
        hs.extract(model, loader(), "norm", to=hs.Store(tmp_path / "f", ids=ids))
    assert not calls


def test_more_ids_than_samples_are_refused_at_the_end_where_nobody_knew_before(model: Scaled, tmp_path: Path) -> None:
    with pytest.raises(hs.UsageError, match="there are 14 ids, and the loader gave 12 samples"):
        hs.extract(model, list(X.split(4)), "norm", to=hs.Store(tmp_path / "f", ids=list(range(14))))


def test_a_reference_of_a_batch_that_fails_leaves_nothing_behind(model: Scaled, tmp_path: Path) -> None:
    with pytest.raises(hs.UsageError, match="cannot take the batch"):
        hs.record_reference(model, torch.randn(2, 5), to=tmp_path / "ref")
    assert not (tmp_path / "ref").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(hs.UsageError, match="cannot take the batch"):
        hs.record_reference(model, torch.randn(2, 5), to=tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []
    hs.record_reference(model, X, to=tmp_path / "empty")


@pytest.mark.parametrize("spread", [False, True])
def test_an_additive_attention_mask_leaves_out_what_it_hides(spread: bool) -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.fc(x)

    x, keep = torch.randn(2, 5, 4), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], dtype=torch.bool)
    additive = torch.zeros(2, 5).masked_fill(~keep, torch.finfo(torch.float32).min)
    causal = torch.full((5, 5), torch.finfo(torch.float32).min).triu(1)
    mask = torch.maximum(additive[:, None, None] + causal / 2, torch.tensor(torch.finfo(torch.float32).min)) if spread else additive
    model = Tokens()
    found = hs.analyze(model, [{"x": x, "attention_mask": mask}])["fc"]
    wanted = model.fc(x[keep]).detach().double()
    assert found.stats.n.tolist() == [7, 7, 7]
    np.testing.assert_allclose(found.stats.mean, wanted.mean(0).numpy(), rtol=1e-5, atol=1e-7)
    nothing_hidden = hs.analyze(model, [{"x": x, "attention_mask": torch.zeros(2, 5)}])["fc"]
    assert nothing_hidden.stats.n.tolist() == [10, 10, 10]


def test_a_few_dead_units_and_a_low_rank_are_told_as_information() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    with torch.no_grad():
        model[0].bias[:5] -= 100
        model[2].weight.copy_(torch.randn(32, 1) @ torch.randn(1, 32))
    found = {f.rule: f for f in hs.analyze(model, [torch.randn(400, 32)]).findings}
    assert found["dead-units"].severity == "info"
    assert found["dead-units"].message.startswith("5 of 32 units of 0")
    assert found["low-rank"].severity == "info"
    assert found["low-rank"].message.startswith("2 uses 1 of 32 directions")


def test_what_is_shown_of_a_result_is_one_line(model: Scaled) -> None:
    other = Scaled().eval()
    found = hs.diff(model, other, X)
    for shown in (repr(found), repr(found.first)):
        assert "\n" not in shown
        assert len(shown) < 300
    assert "first divergence at `fc`" in repr(found)


def test_an_activation_beside_a_convolution_over_sequences_is_asked_about() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU())
    x = torch.randn(4, 2, 8)
    with pytest.raises(hs.UsageError, match="write pool='mean:NLC' or pool='mean:NCL'"):
        hs.extract(model, x, "1", pool="mean")
    found = hs.extract(model, x, "1", pool="mean:NCL")["1"]
    torch.testing.assert_close(found, model(x).mean(-1).detach())
    assert hs.extract(nn.Sequential(nn.Linear(8, 3), nn.ReLU()), x, "1", pool="mean")["1"].shape == (4, 3)
