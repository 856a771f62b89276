"""Functions that are no modules are named by the module that calls them and their own name."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import hookscope as hs
from hookscope._lab._extract._functions import function_name

X = torch.linspace(-1, 1, 24).reshape(2, 3, 4)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = functional.softmax(self.q(x) @ self.k(x).mT, dim=-1)
        return weights @ x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.ModuleList([Attention(), Attention()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for attention in self.attn:
            x = x + attention(x).relu_()
        return x.softmax(-1)


def weights_by_hand(attention: Attention, x: torch.Tensor) -> torch.Tensor:
    scores = (attention.q(x) @ attention.k(x).mT).exp()
    return (scores / scores.sum(-1, keepdim=True)).detach()


def test_attention_weights_are_found_under_their_module() -> None:
    model = Net().eval()
    feats = hs.extract(model, X, "attn.*:output/softmax")
    assert [str(key) for key in feats] == ["attn.0:output/softmax", "attn.1:output/softmax"]
    assert torch.allclose(feats["attn.0:output/softmax"], weights_by_hand(model.attn[0], X), atol=1e-6)


def test_what_the_model_calls_itself_is_the_models_own() -> None:
    model = Net().eval()
    feats = hs.extract(model, X, "(root):output/softmax")
    assert torch.equal(feats["(root):output/softmax"], model(X).detach())


def test_each_call_of_a_function_is_kept_and_a_module_is_not_mixed_with_its_functions() -> None:
    model = Net().eval()
    feats = hs.extract(model, X, ["attn.0", "attn.0:output/matmul"])
    assert [str(key) for key in feats] == ["attn.0:output/matmul", "attn.0:output/matmul#1", "attn.0:output"]
    assert torch.equal(feats["attn.0:output/matmul", 1], feats["attn.0"])


def test_a_function_that_writes_in_place_does_not_change_what_was_taken_before() -> None:
    model = Net().eval()
    feats = hs.extract(model, X, ["attn.0:output/matmul@1", "(root):output/relu_@0"])
    assert (feats["attn.0:output/matmul", 1] < 0).any()
    assert torch.equal(feats["(root):output/relu_"], feats["attn.0:output/matmul", 1].relu())


def test_a_wildcard_finds_every_function_of_a_module() -> None:
    feats = hs.extract(Net().eval(), X, "attn.0:output/*")
    assert [str(key) for key in feats] == [
        "attn.0:output/matmul",
        "attn.0:output/softmax",
        "attn.0:output/matmul#1",
        "attn.0:output",
    ]


def test_without_a_function_in_the_selection_none_is_kept() -> None:
    assert {key.site.label for key in hs.extract(Net().eval(), X, "**")} == {""}


def test_a_misspelt_function_is_answered_with_those_that_ran() -> None:
    with pytest.raises(hs.SelectionError, match=r"'attn.1:output/sofmax' gave nothing: did you mean 'softmax'"):
        hs.extract(Net(), X, "attn.1:output/sofmax")
    with pytest.raises(hs.SelectionError, match=r"'attn.1:output/conv2d' gave nothing: the functions called there are matmul, softmax$"):
        hs.extract(Net(), X, "attn.1:output/conv2d")
    with pytest.raises(hs.SelectionError, match=r"no site matches 'atn\.1:output/softmax': did you mean 'attn\.1:output/softmax'"):
        hs.extract(Net(), X, "atn.1:output/softmax")


def test_after_an_error_the_next_batch_begins_in_no_module() -> None:
    model = Net()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        hs.extract(model, X[..., :3], "**:output/softmax")
    assert [str(key) for key in hs.extract(model, X, "**:output/softmax") if key.site.label][-1] == "(root):output/softmax"


def test_two_captures_at_once_see_the_model_and_not_each_other() -> None:
    model = Net().eval()
    with hs.capture(model, "**:output/*") as outer, hs.capture(model, ["**", "**:output/*"]) as inner:
        model(X)
    assert {str(key) for key in outer} == {str(key) for key in inner}
    assert not any("clone" in str(key) or "detach" in str(key) for key in outer)


def test_the_recomputation_of_a_checkpoint_is_not_counted() -> None:
    model = Attention()
    with hs.capture(model, "(root):output/softmax") as feats:
        torch.utils.checkpoint.checkpoint(model, X, use_reentrant=False).sum().backward()
    assert len(feats) == 1


@pytest.mark.parametrize(
    ("function", "name"),
    [(torch.softmax, "softmax"), (torch.Tensor.relu_, "relu_"), (torch.Tensor.__matmul__, "matmul"), (torch.Tensor.shape.__get__, "")],
)
def test_operators_and_methods_are_called_by_the_name_of_the_function(function: object, name: str) -> None:
    assert function_name(function) == name
