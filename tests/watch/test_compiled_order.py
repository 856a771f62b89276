"""Rows of a graph stand where their modules return."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookscope._core._stats import EMPTY, Stats
from hookscope._watch._compiled_order import in_order, post_order
from hookscope._watch._compiled_rows import Block, merge_into

from ._oracle import stats_of


def test_a_module_returns_after_those_inside_it() -> None:
    places = [("", ""), ("", "a"), ("", "a.x"), ("", "a.y"), ("", "ab"), ("m", ""), ("m", "a")]
    assert post_order(places) == {p: i for i, p in enumerate([places[i] for i in (2, 3, 1, 4, 0, 6, 5)])}


def test_rows_of_a_graph_go_between_those_that_were_heard() -> None:
    # Heard: the input, modules 0 and 5, the loss. In a graph: modules 2 (output and gradient) and 3.
    seq, ranks = np.array([0, 1, 2, 3], np.int32), np.array([-1, 0, 5, np.inf, 2, 2, 3])
    assert in_order(seq, ranks).tolist() == [0, 1, 4, 5, 2, 2, 3]


def test_without_anything_heard_the_modules_order_is_all_there_is() -> None:
    assert in_order(np.zeros(0, np.int32), np.array([4.0, 1.0, 1.0])).tolist() == [1, 0, 0]


@given(
    st.lists(
        st.lists(st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, float("nan"), float("inf")]), min_size=1), min_size=1, max_size=5
    )
)
def test_what_is_merged_into_a_slot_is_the_whole(parts: list[list[float]]) -> None:
    block = Block(2, torch.device("cpu"), torch.float64)
    for part in parts:
        merge_into(block.slots[1].tensor, torch.tensor(part), again=None)
    written, rows = block.take()
    assert written.tolist() == [1]
    whole = stats_of(torch.tensor([x for part in parts for x in part]))
    assert rows[0].tolist() == pytest.approx(list(whole), rel=1e-6, abs=1e-6)


def test_what_was_taken_is_gone_and_a_forward_run_again_counts_once() -> None:
    block = Block(1, torch.device("cpu"), torch.float64)
    slot = block.slots[0].tensor
    for again in (False, False, True):
        merge_into(slot, torch.tensor([3.0, -4.0]), again=again)
    assert Stats(*block.take()[1][0]) == Stats(4.0, 0.0, 0.0, 0.0, -2.0, 50.0, -4.0, 3.0)
    assert len(block.take()[0]) == 0
    for _ in range(2):  # a re-entrant checkpoint's first run is not read
        merge_into(slot, torch.tensor([1.0]), again=True)
    assert Stats(*block.take()[1][0]) == Stats(2.0, 0.0, 0.0, 0.0, 2.0, 2.0, 1.0, 1.0)
    assert tuple(EMPTY) == tuple(slot[0].tolist())


def test_a_copy_of_a_slot_is_known_by_its_number() -> None:
    block = Block(2, torch.device("cpu"), torch.float64)
    copy = block.slots[1].tensor.clone()
    merge_into(copy, torch.tensor([[2.0, 5.0]]), again=False)
    block.slots[1].tensor.copy_(copy)
    assert block.slots[1].facts is not None
    assert block.slots[1].facts["shape"] == (1, 2)
    assert block.slots[0].facts is None
    assert block.take()[0].tolist() == [1]


def test_a_slot_on_another_device_is_merged_by_tensor_operations_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    block = Block(1, torch.device("cpu"), torch.float64)
    monkeypatch.setattr(block.slots[0], "host", None)  # as the memory of a GPU, which the host cannot read
    version = block.slots[0].tensor._version
    for again in (False, False, True):
        merge_into(block.slots[0].tensor, torch.tensor([3.0, -4.0, 0.0]), again=again)
    assert block.slots[0].tensor._version == version
    assert Stats(*block.take()[1][0]) == Stats(6.0, 0.0, 0.0, 2.0, -2.0, 50.0, -4.0, 3.0)


def test_slots_are_tensors_of_their_own() -> None:
    block = Block(3, torch.device("cpu"), torch.float64)
    assert len({slot.tensor.untyped_storage()._cdata for slot in block.slots}) == 3
