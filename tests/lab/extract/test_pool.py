"""Pools against sums written out by hand in float64; layouts are told or declared, never guessed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import hookscope as hs

Oracle = Callable[[np.ndarray, np.ndarray], np.ndarray]
BY_HAND: dict[str, Oracle] = {  # over (positions, channels) of one sample, and which positions count
    "mean": lambda x, m: x[m].mean(0),
    "max": lambda x, m: x[m].max(0),
    "cls": lambda x, m: x[m][0],
    "last": lambda x, m: x[m][-1],
}


@given(
    how=st.sampled_from(sorted(BY_HAND)), shape=st.tuples(*[st.integers(1, 4)] * 4), order=st.permutations("NCHW"), seed=st.integers(0, 99)
)
@settings(max_examples=60, deadline=None)
def test_every_pool_over_every_layout_is_what_arithmetic_says(how: str, shape: tuple[int, ...], order: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, h, w, c = shape
    x = rng.normal(size=shape)
    mask = rng.random((n, h, w)) < 0.6
    mask[:, 0, 0] = True
    layout = "".join(order)
    tensor = torch.from_numpy(x).permute(["NHWC".index(letter) for letter in layout])
    if layout.index("W") < layout.index("H"):  # positions count in the order in which the tensor has them
        x, mask = x.transpose(0, 2, 1, 3), mask.transpose(0, 2, 1)
    right = np.stack([BY_HAND[how](x[i].reshape(h * w, c), mask[i].reshape(-1)) for i in range(n)])
    whole = np.stack([BY_HAND[how](x[i].reshape(h * w, c), np.full(h * w, True)) for i in range(n)])
    masked = hs.Pool(how, layout, torch.from_numpy(mask.copy()))  # type: ignore[arg-type]
    assert np.allclose(masked.of(tensor, nn.Identity()), right)
    assert np.allclose(hs.Pool(how, layout).of(tensor, nn.Identity()), whole)  # type: ignore[arg-type]


X3, X4 = torch.arange(24.0).reshape(2, 3, 4), torch.arange(120.0).reshape(2, 3, 4, 5)


def declaring(**names: Any) -> nn.Module:
    module = nn.Identity()
    for name, value in names.items():
        setattr(module, name, value)
    return module


KNOWN: list[tuple[nn.Module, torch.Tensor, int | tuple[int, ...]]] = [
    (nn.Conv2d(1, 1, 1), X4, (2, 3)),
    (nn.BatchNorm2d(3), X4, (2, 3)),
    (nn.Sequential(nn.Linear(1, 1), nn.MaxPool2d(2)), X4, (2, 3)),
    (nn.Conv1d(1, 1, 1), X3, 2),
    (nn.Linear(1, 1), X4, (1, 2)),
    (nn.LayerNorm(1), X3, 1),
    (declaring(output_fmt="NHWC"), X4, (1, 2)),
    (declaring(output_fmt="NCHW"), X4, (2, 3)),
    (declaring(output_fmt="NCL"), X3, 2),
    (nn.Identity(), X3, 1),
    (nn.LSTM(1, 1, batch_first=True), X3, 1),
    (nn.TransformerEncoderLayer(4, 1, batch_first=True), X3, 1),
]


@pytest.mark.parametrize(("module", "tensor", "positions"), KNOWN, ids=lambda value: type(value).__name__)
def test_a_layout_that_is_declared_or_known_is_used(module: nn.Module, tensor: torch.Tensor, positions: int) -> None:
    assert torch.equal(hs.Pool("mean").of(tensor, module), tensor.mean(positions))


@pytest.mark.parametrize("module", [nn.LSTM(4, 4), nn.TransformerEncoderLayer(4, 1), nn.MultiheadAttention(4, 1)])
def test_sequences_that_come_first_are_known_by_batch_first(module: nn.Module) -> None:
    assert torch.equal(hs.Pool("mean").of(X3, module), X3.mean(0))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_states_of_recurrent_modules_keep_their_samples_and_lose_their_layers(kind: type[nn.RNNBase], first: bool) -> None:
    module = kind(4, 6, 2, batch_first=first)
    x, hx = torch.randn(3, 3, 4), torch.randn(2, 3, 6)
    given = (hx, hx + 1) if kind is nn.LSTM else hx
    whole = hs.extract(module, {"input": x, "hx": given}, "(root):input,output")
    pool = hs.Pool("mean", mask=torch.ones(3, 3))
    pooled = hs.extract(module, {"input": x, "hx": given}, "(root):input,output", pool=pool)
    assert list(pooled) == list(whole)
    states = [key for key in whole if whole[key].shape[0] == 2]
    assert len(states) == (4 if kind is nn.LSTM else 2)
    for key in states:
        torch.testing.assert_close(pooled[key], (whole[key][0] + whole[key][1]) / 2)
    by_place = hs.extract(module, (x, given), "(root):input,output", pool="last")
    assert {tuple(t.shape) for t in by_place.values()} == {(3, 4), (3, 6)}


@pytest.mark.parametrize(
    ("module", "tensor"), [(nn.Identity(), X4), (nn.ReLU(), X4), (nn.Sequential(), X4), (nn.Sequential(nn.Conv1d(1, 1, 1), nn.ReLU()), X3)]
)
def test_what_nobody_has_said_is_asked_for(module: nn.Module, tensor: torch.Tensor) -> None:
    known = ("NCHW", "NHWC") if tensor.dim() == 4 else ("NLC", "NCL")
    if isinstance(module, nn.Sequential) and len(module):
        module = nn.ModuleDict({"of": module})
    with pytest.raises(
        hs.UsageError, match=f"nothing says which of its dimensions are the channels: .*'mean:{known[0]}'.*'mean:{known[1]}'"
    ):
        hs.Pool("mean").of(tensor, module)


def test_padding_that_is_nan_does_not_reach_a_masked_mean() -> None:
    x = torch.tensor([[[1.0], [3.0], [float("nan")]]])
    assert hs.Pool("mean", mask=torch.tensor([[1, 1, 0]])).of(x, nn.Identity()).item() == 2.0


def test_a_sample_without_any_position_is_nan() -> None:
    assert hs.Pool("mean", mask=torch.zeros(1, 3)).of(torch.ones(1, 3, 2), nn.Identity()).isnan().all()


def test_a_masked_mean_in_half_precision_is_summed_in_full() -> None:
    x = torch.full((1, 4096, 1), 100.0, dtype=torch.float16)
    assert hs.Pool("mean", mask=torch.ones(1, 4096)).of(x, nn.Identity()).item() == 100.0


def test_two_dimensions_stay_as_they_are() -> None:
    x = torch.ones(3, 4)
    assert hs.Pool("mean").of(x, nn.Linear(4, 4)) is x


def test_flatten_puts_the_samples_first() -> None:
    assert torch.equal(hs.Pool("flatten").of(X4, nn.Conv2d(1, 1, 1)), X4.flatten(1))
    assert hs.Pool("flatten", "LNC").of(X3, nn.Identity()).shape == (3, 8)


def test_a_function_and_a_dict_by_selection_pool_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Identity()).eval()
    x = torch.ones(2, 3, 5, 5)
    feats = hs.extract(model, x, "*", pool={"0": "max", "1": lambda t: t[:, 0]})
    assert (feats["0"].shape, feats["1"].shape) == ((2, 4), (2, 5, 5))


def test_the_mask_is_found_in_the_batch_by_its_name() -> None:
    class Embeds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 4)

        def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.table(ids)

    model, mask = Embeds(), torch.tensor([[1, 1, 0], [1, 0, 0]])
    batch = {"ids": torch.tensor([[1, 2, 0], [3, 0, 0]]), "attention_mask": mask}
    got = hs.extract(model, batch, "table", pool=hs.Pool("mean", mask="attention_mask"))["table"]
    table = model.table.weight.detach()
    assert torch.allclose(got, torch.stack([(table[1] + table[2]) / 2, table[3]]))
    with pytest.raises(hs.UsageError, match=r"mask='padding' is to be found in the batch, which is 'ids', 'attention_mask'"):
        hs.extract(model, batch, "table", pool=hs.Pool("mean", mask="padding"))


def test_a_pool_for_what_is_not_in_the_model_is_refused_with_what_is_near() -> None:
    model = nn.Sequential()
    model.add_module("encoder", nn.Conv2d(3, 4, 1))
    x = torch.ones(2, 3, 5, 5)
    with pytest.raises(hs.SelectionError, match=r"'encodr'.*'?encoder"):
        hs.extract(model, x, "encoder", pool={"encodr": "mean"})
    assert hs.extract(model, x, "encoder", pool={"encoder:output": "mean"})["encoder"].shape == (2, 4)
    assert not model[0]._forward_hooks


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: hs.Pool("men"), "pool 'men' is unknown: did you mean 'mean'?"),  # type: ignore[arg-type]
        (lambda: hs.Pool("mean", "NHW"), "layout 'NHW' is none: write a letter for each dimension"),
        (lambda: hs.Pool("mean", "NCCH"), "layout 'NCCH' is none"),
        (
            lambda: hs.Pool("mean", "NCHW").of(X3, nn.Identity()),
            "layout 'NCHW' has 4 dimensions, and a Identity gave a tensor of shape (2, 3, 4)",
        ),
        (
            lambda: hs.Pool("mean", mask=torch.ones(2, 9)).of(X3, nn.Identity()),
            "the mask has shape (2, 9), and there are (2, 3) samples and",
        ),
    ],
)
def test_a_wrong_pool_is_answered_with_a_right_one(wrong: Callable[[], object], said: str) -> None:
    with pytest.raises(hs.UsageError, match=re.escape(said)):
        wrong()
