"""Whatever happens to one rank, training ends as it does without a watch, and the run of every rank that is left reads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import hookscope as hs

from ._launch import Ended, launch

pytestmark = pytest.mark.slow  # two processes, each of which loads torch

ALL = os.environ.get("HOOKSCOPE_RANK_DRILLS")
HOWS = ("ddp", "fsdp", "tp", "syncbn")
WHATS = ("slow", "nan", "leap", "huge", "disk", "sampling", "unwatched", "schedule", "nan checkpoint", "leap checkpoint")
SPEAKING = [f"{how}:reduce {what}" for how in ("ddp", "fsdp") for what in WHATS[:8]]
EVERY = [f"{how}:{what}" for how in HOWS for what in WHATS] + SPEAKING
GOES_ON = EVERY if ALL else ["fsdp:nan", "syncbn:nan", "fsdp:disk", "tp:sampling", "ddp:reduce sampling", "fsdp:reduce nan"]
ENDING = ("kill", "raise", "reduce kill", "reduce raise")
ENDS = [f"{how}:{what}" for how in HOWS for what in ENDING if how != "tp" or " " not in what] if ALL else ["ddp:kill", "ddp:reduce kill"]


def told(rank: Ended) -> dict[str, Any]:
    """What a rank that lived to the end has said."""
    return json.loads(rank.out.splitlines()[-1]) if rank.out else {}


@pytest.fixture(scope="module")
def going_on(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    to = tmp_path_factory.mktemp("drills")
    ended = launch("_drill.py", str(to), *GOES_ON, timeout=900 if ALL else 120)  # that none waits for ever is what this asks
    assert [rank.code for rank in ended] == [0, 0], [rank.err[-3000:] for rank in ended]
    return to, [told(rank) for rank in ended]


@pytest.mark.parametrize("drill", GOES_ON)
def test_training_ends_as_without_a_watch(going_on: tuple[Path, list[dict[str, Any]]], drill: str) -> None:
    to, ranks = going_on
    for rank in ranks:
        bare, watched = rank[drill]
        assert watched == bare
        assert bare["error"] is None
    run = hs.Run(to / drill.replace(":", "-"))
    what = drill.partition(":")[2].removeprefix("reduce ")
    assert run.rank(0).steps.tolist() == [0, 1, 2, 3, 4, 5]
    if what not in ("disk", "sampling"):
        assert run.rank(1).steps.tolist() == [0, 1, 2, 3, 4, 5]
    if what == "sampling":
        assert (run.rank(1).steps.tolist(), run.uneven_steps.tolist()) == ([0, 2, 4], [1, 3])
    hs.diagnose(run)


@pytest.mark.parametrize("drill", ENDS)
def test_a_rank_that_ends_ends_the_others_as_without_a_watch(tmp_path: Path, drill: str) -> None:
    bare, watched = (launch("_drill.py", to, drill, timeout=100) for to in ("bare", str(tmp_path)))
    assert [rank.code for rank in watched] == [rank.code for rank in bare], [rank.err[-2000:] for rank in watched]
    assert [told(rank) for rank in watched] == [told(rank) for rank in bare]
    run = hs.Run(tmp_path / drill.replace(":", "-"))
    assert run.rank(0).steps.tolist() == [0, 1, 2, 3]  # the forward that failed is what one will want to see
    if 1 in run.ranks:  # it may have had no time to write anything
        assert set(run.rank(1).steps.tolist()) <= {0, 1, 2, 3}
    hs.diagnose(run)
