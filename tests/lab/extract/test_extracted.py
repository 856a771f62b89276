"""The result is a mapping that is read by the names of sites, and prints as a calm table."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import hookscope as hs
from hookscope._lab._extract._key import Key

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.block = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.block(self.first(x)))


@pytest.fixture
def feats() -> hs.Extracted:
    return hs.extract(Net().eval(), X, ["block", "first", "first:input", "block.bias:param"])


def test_keys_are_in_the_order_in_which_tensors_came(feats: hs.Extracted) -> None:
    assert [str(key) for key in feats] == ["block.bias:param", "first:input", "first:output", "block:output", "block:output#1"]
    assert list(feats.values())[1] is feats["first:input"]


def test_a_site_is_found_by_path_by_name_by_key_and_by_call(feats: hs.Extracted) -> None:
    key = list(feats)[-1]
    assert isinstance(key, Key)
    assert feats["first"] is feats["first:output"]
    assert feats["block", 1] is feats["block@1"] is feats[key] is feats["block:output", 1]
    assert feats["block.bias"] is feats["block.bias:param"]


def test_what_is_in_it_is_asked_by_the_same_names(feats: hs.Extracted) -> None:
    assert "first" in feats
    assert ("block", 1) in feats
    assert next(iter(feats)) in feats
    assert "last" not in feats
    assert "block" not in feats  # which call is not said
    assert 3 not in feats
    assert len(feats) == 5


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("block", r"^'block' was called 2 times: write feats\['block', 1\] for one of the calls 0 to 1, feats\.calls\('block'\) for all$"),
        (("block", 5), r"^there is no call 5 of 'block': there is 0, 1$"),
        ("frist", r"^nothing was extracted as 'frist': did you mean 'first'"),
        ("zzz", r"^nothing was extracted as 'zzz': there is 'block.bias:param', 'first:input', 'first:output', 'block:output'$"),
        ("*", r"^'\*' means 2 tensors: write one of 'first:output', 'block:output'$"),
        (7, r"^7 names no tensor: write a site, as in feats\['encoder.0'\], or a site and a call, feats\['encoder.0', 1\]$"),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_those_that_are(feats: hs.Extracted, name: object, said: str) -> None:
    with pytest.raises(hs.SelectionError, match=said):
        feats[name]  # type: ignore[index]
    with pytest.raises(LookupError):
        feats[name]  # type: ignore[index]


def test_it_prints_as_a_table(feats: hs.Extracted) -> None:
    assert repr(feats) == (
        "5 tensors, 208 B\n"
        "site              call  shape  dtype    size\n"
        "block.bias:param  0     4      float32  16 B\n"
        "first:input       0     3 × 4  float32  48 B\n"
        "first:output      0     3 × 4  float32  48 B\n"
        "block:output      0     3 × 4  float32  48 B\n"
        "block:output      1     3 × 4  float32  48 B"
    )
    assert repr(hs.Extracted()) == "0 tensors, 0 B"


def test_a_long_table_is_cut_and_says_so() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(45)])
    shown = repr(hs.extract(model, X, "*")).splitlines()
    assert len(shown) == 43
    assert shown[-1] == "... and 5 more"


def test_sizes_are_written_with_their_unit() -> None:
    assert repr(hs.extract(nn.Identity(), torch.zeros(1 << 20), "(root)")).splitlines()[0] == "1 tensor, 4.0 MiB"


def test_numpy_gives_arrays_by_name(feats: hs.Extracted) -> None:
    arrays = feats.numpy()
    assert list(arrays) == [str(key) for key in feats]
    assert np.array_equal(arrays["block:output#1"], feats["block", 1].numpy())


def test_numpy_widens_bfloat16_and_takes_off_the_graph() -> None:
    feats = hs.extract(nn.Linear(4, 2), X, "(root)", dtype="bfloat16", grad=True)
    (array,) = feats.numpy().values()
    assert array.dtype == np.float32
    assert np.array_equal(array, feats["(root)"].detach().float().numpy())


def test_it_can_be_copied_and_pickled(feats: hs.Extracted) -> None:
    for twin in (copy.deepcopy(feats), pickle.loads(pickle.dumps(feats))):
        assert list(twin) == list(feats)
        assert torch.equal(twin["first"], feats["first"])
