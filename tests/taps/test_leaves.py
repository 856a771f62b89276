"""The tensors inside what a module returns, and the path to each as one would write it in Python."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from transformers.modeling_outputs import BaseModelOutputWithPast

from hookscope._taps._leaves import MAX_DEPTH, MAX_LEAVES, call_leaves, leaves

A, B, C = torch.zeros(1), torch.ones(2), torch.full((3,), 2.0)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Detected:
    boxes: torch.Tensor
    extra: Any = None
    hidden: Any = field(default=None, repr=False)


def names(value: Any) -> list[str]:
    """The paths, after a check that each of them, put behind the value, leads to the very tensor."""
    for path, tensor in leaves(value):
        assert eval("value" + path, {"value": value}) is tensor  # what a path means is what Python makes of it
    return [path for path, _ in leaves(value)]


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (A, [""]),
        ((A, B), ["[0]", "[1]"]),
        ([A, (B, C)], ["[0]", "[1][0]", "[1][1]"]),
        ((A, None, 3, "text", B), ["[0]", "[4]"]),
        ({"mask": A, "logits": {"deep": B}}, ['["mask"]', '["logits"]["deep"]']),
        (OrderedDict(out=A, aux=B), ['["out"]', '["aux"]']),
        ({0: A, ("k", 1): B}, ["[0]", "[('k', 1)]"]),
        (Pair(A, (B, None)), [".left", ".right[0]"]),
        (namedtuple("Old", "x y")(A, B), [".x", ".y"]),  # noqa: PYI024  # the untyped one is what old code has
        (Detected(A, extra=[B], hidden={"h": C}), [".boxes", ".extra[0]", '.hidden["h"]']),
        (
            BaseModelOutputWithPast(last_hidden_state=A, hidden_states=(B, C)),
            [".last_hidden_state", ".hidden_states[0]", ".hidden_states[1]"],
        ),
        (None, []),
        (3.5, []),
        ("text", []),
        ((), []),
        (Detected, []),
        ((A, A), ["[0]", "[1]"]),
        (torch.nn.Parameter(A), [""]),
    ],
)
def test_every_tensor_is_found_with_its_path(value: Any, paths: list[str]) -> None:
    assert names(value) == paths


def test_a_packed_sequence_gives_its_data_and_its_indices() -> None:
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)], enforce_sorted=False)
    assert names(packed) == [".data", ".batch_sizes", ".sorted_indices", ".unsorted_indices"]


def test_an_output_of_a_transformers_model_is_read_by_its_fields_not_as_a_mapping() -> None:
    output = BaseModelOutputWithPast(last_hidden_state=A)
    assert isinstance(output, dict)
    assert names(output) == [".last_hidden_state"]


def test_a_dataclass_whose_field_was_deleted_gives_the_rest() -> None:
    value = Detected(A, extra=B)
    del value.boxes
    assert names(value) == [".extra"]


def nested(depth: int) -> Any:
    value: Any = A
    for _ in range(depth):
        value = [value]
    return value


def test_what_is_nested_too_deep_is_left_alone() -> None:
    assert names(nested(MAX_DEPTH)) == ["[0]" * MAX_DEPTH]
    assert names(nested(MAX_DEPTH + 1)) == []


def test_a_structure_that_holds_itself_is_walked_to_the_limit_only() -> None:
    value: list[Any] = [A]
    value.append(value)
    assert names(value) == ["[1]" * i + "[0]" for i in range(MAX_DEPTH)]


def test_at_most_so_many_tensors_are_taken_and_no_more_are_looked_at() -> None:
    looked = []

    class Lazy(list[torch.Tensor]):
        def __iter__(self) -> Any:
            for _ in range(10 * MAX_LEAVES):
                looked.append(1)
                yield A

    assert [path for path, _ in leaves(Lazy())] == [f"[{i}]" for i in range(MAX_LEAVES)]
    assert len(looked) == MAX_LEAVES


@pytest.mark.parametrize(
    ("args", "kwargs", "paths"),
    [
        ((A,), {}, [""]),
        (((A, B),), {}, ["[0]", "[1]"]),
        ((A, B), {}, ["[0]", "[1]"]),
        ((A, None), {}, ["[0]"]),
        ((A,), {"mask": B}, ["[0]", ".mask"]),
        ((), {"x": A, "more": {"y": B}}, [".x", '.more["y"]']),
        ((), {}, []),
        ((3,), {"flag": True}, []),
    ],
)
def test_arguments_are_named_by_their_place_or_their_keyword(args: Any, kwargs: Any, paths: list[str]) -> None:
    assert [path for path, _ in call_leaves(args, kwargs)] == paths


def test_the_limit_holds_for_all_arguments_of_a_call_together() -> None:
    found = call_leaves(([A] * 200,), {"more": [B] * 200})
    assert len(found) == MAX_LEAVES
    assert found[199][0] == "[0][199]"
    assert found[200][0] == ".more[0]"
