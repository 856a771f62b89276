"""Whatever structure a module takes or returns, each tensor in it has a name and its right value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import hookscope as hs

X = torch.linspace(-1, 1, 24).reshape(2, 3, 4)


@dataclass
class Record:
    state: torch.Tensor
    note: str = "kept as it is"


class Pair(NamedTuple):
    mean: torch.Tensor
    spread: torch.Tensor


FORMS: dict[str, tuple[Any, dict[str, torch.Tensor]]] = {
    "tuple": ((X, (X + 1, None)), {"[0]": X, "[1][0]": X + 1}),
    "list": ([X, 3, X + 1], {"[0]": X, "[2]": X + 1}),
    "dict": ({"a": X, "b": {"c": X + 1}}, {'["a"]': X, '["b"]["c"]': X + 1}),
    "dataclass": (Record(X), {".state": X}),
    "namedtuple": (Pair(X, X + 1), {".mean": X, ".spread": X + 1}),
}


class Gives(nn.Module):
    def __init__(self, form: Any) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: torch.Tensor) -> Any:
        return self.form


@pytest.mark.parametrize("form", FORMS)
def test_each_tensor_of_a_structure_is_found_by_its_path(form: str) -> None:
    given, tensors = FORMS[form]
    model = nn.Sequential(Gives(given))
    feats = hs.extract(model, X, "0")
    assert {key.site.output_path for key in feats} == set(tensors)
    assert all(torch.equal(feats[f"0:output{path}"], right) for path, right in tensors.items())


def test_one_tensor_of_a_structure_can_be_chosen_alone() -> None:
    model = nn.Sequential(Gives(FORMS["tuple"][0]))
    feats = hs.extract(model, X, "0:output[1]")
    assert torch.equal(feats["0"], X + 1)
    with pytest.raises(hs.SelectionError, match=r"'0:output\[5\]' gave nothing: '0' ran once, as call 0, and no tensor of that path"):
        hs.extract(model, X, "0:output[5]")


def test_a_name_that_means_several_tensors_is_answered_with_their_names() -> None:
    feats = hs.extract(nn.Sequential(Gives(FORMS["tuple"][0])), X, "0")
    with pytest.raises(hs.SelectionError, match=r"'0' means 2 tensors: write one of '0:output\[0\]', '0:output\[1\]\[0\]'"):
        feats["0"]


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.rest = nn.Identity(), Keywords()

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        return self.rest(value=self.scale(x), mask=mask)


class Keywords(nn.Module):
    def forward(self, *, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return value * mask


def test_arguments_by_keyword_have_the_keywords_as_their_path() -> None:
    mask = torch.tensor([1.0, 0.0, 1.0, 0.0])
    feats = hs.extract(Named(), {"x": X, "mask": mask}, ["rest:input", "(root):input"])
    assert {str(key) for key in feats} == {"rest:input.value", "rest:input.mask", "(root):input.x", "(root):input.mask"}
    assert torch.equal(feats["rest:input.value"], X)
    assert torch.equal(feats["rest:input.mask"], mask)


def test_a_packed_sequence_is_one_argument_and_a_structure() -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(4, 5, batch_first=True)
    packed = pack_padded_sequence(X, torch.tensor([3, 2]), batch_first=True)
    assert isinstance(packed, PackedSequence)
    feats = hs.extract(nn.Sequential(lstm), packed, ["0:output", "0:input.data"])
    with torch.no_grad():
        out, (h, c) = lstm(packed)
    assert torch.equal(feats["0:output[0].data"], out.data)
    assert torch.equal(feats["0:output[1][0]"], h)
    assert torch.equal(feats["0:output[1][1]"], c)
    assert torch.equal(feats["0:input.data"], packed.data)


def test_an_argument_is_what_it_was_before_the_module_wrote_to_it() -> None:
    class Zeroes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.zero_()

    feats = hs.extract(nn.Sequential(Zeroes()), X.clone(), ["0:input", "0:output"])
    assert torch.equal(feats["0:input"], X)
    assert not feats["0:output"].any()


@pytest.mark.parametrize("batch", [(X, X + 1), [X, X + 1], {"a": X, "b": X + 1}])
def test_a_tuple_or_list_gives_positional_arguments_and_a_dict_keywords(batch: Any) -> None:
    class Adds(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a - b

    assert torch.equal(hs.extract(Adds(), batch, "(root)")["(root)"], X - (X + 1))


def test_labels_behind_what_the_model_takes_are_left_out() -> None:
    model = nn.Linear(4, 2)
    feats = hs.extract(model, (X, torch.zeros(2)), "(root)")
    assert torch.equal(feats["(root)"], model(X))


def test_a_batch_that_does_not_fit_is_answered_with_how_to_say_which_part_is_the_input() -> None:
    with pytest.raises(
        hs.UsageError, match=r"given to Bilinear.forward as 1 positional arguments, which it does not take .*forward=lambda"
    ):
        hs.extract(nn.Bilinear(4, 4, 2), (X,), "(root)")


def test_an_error_of_the_model_itself_is_left_as_it_is() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise TypeError("of my own")

    with pytest.raises(TypeError, match=r"^of my own$"):
        hs.extract(Fails(), (X,), "(root)")


def test_tensors_of_every_layout_are_taken() -> None:
    sparse = X[0].relu().to_sparse()
    ints = torch.arange(4)
    feats = hs.extract(nn.Sequential(Gives((sparse, ints, X > 0))), X, "0", dtype="float16")
    assert torch.equal(feats["0:output[0]"].to_dense(), X[0].relu().half())
    assert torch.equal(feats["0:output[1]"], ints)
    assert feats["0:output[2]"].dtype == torch.bool
