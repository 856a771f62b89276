"""Structured inputs and outputs: one tensor in them is edited, everything else and all types stay."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import hookscope as hs


class Pair(NamedTuple):
    left: torch.Tensor
    right: Any


class Listed(list):
    note = "kept"


class Tupled(tuple):
    __slots__ = ()


@dataclass(frozen=True)
class Frozen:
    logits: torch.Tensor
    extra: Any = None


@dataclass
class Made:
    """Sets one of its fields by itself, so that it cannot be built anew from them."""

    logits: torch.Tensor

    def __post_init__(self) -> None:
        self.logits = self.logits + 1


class Hands(nn.Module):
    """Returns what `make` makes of two tensors."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        return self.make(a, b)


A, B = torch.zeros(2), torch.full((2,), 5.0)
STRUCTURES: dict[str, tuple[Any, str, Any]] = {  # what makes it, the path to its second tensor, how to get there
    "tuple": (lambda a, b: (a, b), "[1]", lambda v: v[1]),
    "list": (lambda a, b: [a, b], "[1]", lambda v: v[1]),
    "list of its own class": (lambda a, b: Listed([a, b]), "[1]", lambda v: v[1]),
    "tuple of its own class": (lambda a, b: Tupled((a, b)), "[1]", lambda v: v[1]),
    "namedtuple": (lambda a, b: Pair(a, (None, b)), ".right[1]", lambda v: v.right[1]),
    "dict": (lambda a, b: {"x": a, "y": b, "n": 3}, '["y"]', lambda v: v["y"]),
    "ordered dict": (lambda a, b: OrderedDict(x=a, y=[b]), ".y[0]", lambda v: v["y"][0]),
    "mapping": (lambda a, b: UserDict(x=a, y=b), '["y"]', lambda v: v["y"]),
    "dataclass": (lambda a, b: Frozen(a, {"b": b}), '.extra["b"]', lambda v: v.extra["b"]),
    "nested": (lambda a, b: (a, {"k": [None, "text", Pair(1, b)]}), '[1]["k"][2].right', lambda v: v[1]["k"][2].right),
    "torch.return_types": (lambda a, b: torch.return_types.max((a, b)), "[1]", lambda v: v[1]),
}


@pytest.mark.parametrize("kind", STRUCTURES)
def test_the_tensor_on_the_output_path_is_replaced_and_nothing_else(kind: str) -> None:
    make, path, get = STRUCTURES[kind]
    made = []
    model = Hands(lambda a, b: made.append(make(a, b)) or made[-1])
    with hs.edit(model, {f"(root):output{path}": hs.add(1.0)}):
        output = model(A, B)
    assert type(output) is type(made[0])
    assert output is not made[0]
    assert torch.equal(get(output), B + 1)
    assert get(made[0]) is B  # what the module made is not written to
    assert repr(output).replace("6.", "5.") == repr(made[0])
    assert getattr(output, "note", "kept") == "kept"


@pytest.mark.parametrize("kind", STRUCTURES)
def test_without_an_output_path_the_first_tensor_of_floating_point_numbers_is_meant(kind: str) -> None:
    make, _, get = STRUCTURES[kind]
    model = Hands(make)
    with hs.edit(model, {"(root)": hs.add(1.0)}) as e:
        output = model(A, B)
    assert get(output) is B
    assert list(e.counts.values()) == [1]


def test_whole_numbers_before_it_are_passed_over_unless_there_is_nothing_else() -> None:
    numbers = torch.tensor([1, 2])
    with hs.edit(model := Hands(lambda a, b: (numbers, a)), {"(root)": hs.add(1.0)}):
        assert torch.equal(model(A, B)[0], numbers)
        assert torch.equal(model(A, B)[1], A + 1)
    with hs.edit(model := Hands(lambda a, b: (numbers, None)), {"(root)": hs.zero()}):
        assert model(A, B)[0].tolist() == [0, 0]


def test_a_path_to_a_structure_means_all_tensors_below_it() -> None:
    lstm = nn.LSTM(3, 4)
    x = torch.randn(5, 2, 3)
    out, (h, c) = lstm(x)
    with hs.edit(lstm, {"(root):output[1]": hs.zero()}) as e:
        new, (new_h, new_c) = lstm(x)
    assert torch.equal(new, out)
    assert not new_h.any()
    assert not new_c.any()
    assert e.counts == {"(root):output[1][0]": 1, "(root):output[1][1]": 1}
    with hs.edit(lstm, {"(root):output[1][1]": hs.scale(2.0)}):
        assert torch.equal(lstm(x)[1][1], 2 * c)
        assert torch.equal(lstm(x)[1][0], h)


def test_an_object_of_its_own_making_is_copied_not_built_anew() -> None:
    model = Hands(lambda a, b: Made(b))
    with hs.edit(model, {"(root):output.logits": hs.scale(2.0)}):
        assert torch.equal(model(A, B).logits, (B + 1) * 2)


def test_a_packed_sequence_stays_one() -> None:
    lstm = nn.LSTM(3, 4)
    packed = pack_sequence([torch.randn(n, 3) for n in (4, 2, 1)])
    plain, _ = lstm(packed)
    with hs.edit(lstm, {"(root):output": hs.scale(2.0)}):
        doubled, _ = lstm(packed)
    assert isinstance(doubled, PackedSequence)
    assert torch.equal(doubled.data, 2 * plain.data)
    assert torch.equal(doubled.batch_sizes, plain.batch_sizes)
    with hs.edit(lstm, {"(root):input": hs.zero()}):
        assert torch.equal(lstm(packed)[0].data, lstm(packed._replace(data=torch.zeros_like(packed.data)))[0].data)


def test_a_model_output_keeps_class_attributes_and_items_together() -> None:
    modeling = pytest.importorskip("transformers.modeling_outputs")
    model = Hands(lambda a, b: modeling.BaseModelOutput(last_hidden_state=a, hidden_states=(a, b)))
    for path, get in ((".last_hidden_state", lambda v: v.last_hidden_state), (".hidden_states[1]", lambda v: v.hidden_states[1])):
        plain = get(model(A, B))
        with hs.edit(model, {f"(root):output{path}": hs.add(1.0)}):
            output = model(A, B)
        assert type(output) is modeling.BaseModelOutput
        assert torch.equal(get(output), plain + 1)
        assert output["last_hidden_state"] is output.last_hidden_state is output[0]
        assert list(output) == ["last_hidden_state", "hidden_states"]


class Inner(nn.Module):
    def forward(self, x: torch.Tensor, *, scale: torch.Tensor, flag: bool = False) -> torch.Tensor:
        assert flag
        return x * scale


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, scale=torch.tensor(3.0), flag=True)


@pytest.mark.parametrize(("path", "value"), [("", 4 * 3.0), ("[0]", 4 * 3.0), (".scale", 2 * 6.0)])
def test_inputs_are_edited_by_position_and_by_keyword(path: str, value: float) -> None:
    model = Outer()
    with hs.edit(model, {f"inner:input{path}": hs.scale(2.0)}):
        assert model(torch.tensor(2.0)).item() == value
    assert model(torch.tensor(2.0)).item() == 6.0


def test_an_only_argument_is_also_the_one_at_index_0() -> None:
    model = nn.Sequential(nn.Identity())
    with hs.edit(model, {"0:input[0]": hs.add(1.0)}):
        assert torch.equal(model(B), B + 1)
    model = Hands(lambda a, b: b)
    with hs.edit(model, {"(root):input[1]": hs.add(1.0)}):
        assert torch.equal(model(A, B), B + 1)
        assert torch.equal(model(A, b=B), B)
    assert model(A, B) is B


def test_a_path_that_leads_nowhere_is_told_when_the_edit_is_closed() -> None:
    model = Hands(lambda a, b: (a, b))
    e = hs.edit(model, {"(root):output[2]": hs.zero()})
    model(A, B)
    with pytest.warns(hs.HookscopeWarning, match=r"on '\(root\):output\[2\]' never acted"):
        e.close()
