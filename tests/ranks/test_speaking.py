"""`reduce="step"`: what one rank sees is acted on by every rank at the same step, and ranks that come apart go on each by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookscope as hs

from ._launch import launched_well

pytestmark = pytest.mark.slow  # real processes, each of which loads torch

DRILLS = {2: ("fsdp:grad", "alone:batch", "alone:grad"), 4: ("fsdp:grad", "alone:batch", "alone:grad")}


@pytest.fixture(scope="module", params=DRILLS)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    to = tmp_path_factory.mktemp("speaking")
    return to, [json.loads(rank.out) for rank in launched_well("_speaking.py", str(to), *DRILLS[request.param], ranks=request.param)]


def test_each_rank_raises_before_the_step_that_is_bad_on_one(ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    for told in ranks[1]:
        found = told["fsdp-grad"]
        assert (found["learned"], found["step"], len(found["moved"])) == ("NonFiniteError", 3, 2)
    alone = [told["alone-grad"]["learned"] for told in ranks[1]]
    assert alone[-1] == "NonFiniteError"  # the others learn nothing without it
    assert set(alone[:-1]) == {""}


def test_each_rank_raises_what_the_rules_find_on_one_at_one_step(ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    found = [told["alone-batch"] for told in ranks[1]]
    assert {(one["learned"], one["step"]) for one in found} == {("FindingError", 4)}
    assert all(one["findings"] == found[0]["findings"] and one["findings"] for one in found)


def test_every_rank_is_left_a_run_that_reads(ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    for folder in ranks[0].iterdir():
        run = hs.Run(folder)
        assert run.ranks == tuple(range(len(ranks[1])))
        hs.diagnose(run)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    to = tmp_path_factory.mktemp("two")
    drills = "ddp:skip", "alone:same", "ddp:uneven", "ddp:sampling"
    return to, [json.loads(rank.out) for rank in launched_well("_speaking.py", str(to), *drills)]


def test_a_step_that_is_bad_on_one_rank_is_left_out_on_all(two: tuple[Path, list[dict[str, Any]]]) -> None:
    for told in two[1]:
        moved = told["ddp-skip"]["moved"]
        assert moved == [True, True, False, True, True, True, True]


def test_ranks_find_the_same_at_the_same_steps(two: tuple[Path, list[dict[str, Any]]]) -> None:
    found = [told["alone-same"]["findings"] for told in two[1]]
    assert found[0] == found[1]
    assert any(rule == "nonfinite-input" for rule, _, _ in found[0])


@pytest.mark.parametrize("what", ["uneven", "sampling"])
def test_ranks_that_come_apart_go_on_and_say_so(two: tuple[Path, list[dict[str, Any]]], what: str) -> None:
    told = [rank[f"ddp-{what}"] for rank in two[1]]
    assert [one["step"] for one in told] == ([7, 4] if what == "uneven" else [7, 7])
    assert any("each rank judged by itself" in text for one in told for text in one["given_up"])
    events = hs.Run(two[0] / f"ddp-{what}").events
    assert any(event["event"] == "reduce_given_up" for event in events)


def test_a_rank_that_opens_no_watch_is_not_waited_for_long(two: tuple[Path, list[dict[str, Any]]]) -> None:
    assert "not all came to theirs within 2 s" in two[1][0]["alone"]["learned"]


def test_one_process_alone_has_nothing_to_reduce_over() -> None:
    with pytest.raises(hs.UsageError, match=r"torch\.distributed is not initialized: call init_process_group first"):
        hs.watch(nn.Linear(1, 1), reduce="step")
    with pytest.raises(hs.UsageError, match="reduce='epoch' is unknown: give 'step'"):
        hs.watch(nn.Linear(1, 1), reduce="epoch")  # type: ignore[arg-type]
    assert not torch.distributed.is_initialized()
