"""DistributedDataParallel in all its ways: not a bit is changed, and both gradients are told, a rank's own and the average."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hookscope as hs

from ._launch import launched_well

pytestmark = pytest.mark.slow  # two processes, each of which loads torch

WAYS = ("static_graph", "find_unused", "bucket_view", "small_buckets", "no_sync", "comm_hook", "join")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    to = tmp_path_factory.mktemp("averaging")
    return to, [json.loads(rank.out) for rank in launched_well("_averaging.py", str(to))]


@pytest.mark.parametrize("way", WAYS)
def test_a_watched_training_ends_with_the_same_bits(ranks: tuple[Path, list[dict[str, Any]]], way: str) -> None:
    to, told = ranks
    assert [rank[way]["equal"] for rank in told] == [True, True]
    assert [e for e in hs.Run(to / way).events if e["event"] in ("switched_off", "hidden_parameters")] == []


@pytest.mark.parametrize("way", [w for w in WAYS if w != "join"])
def test_a_rank_tells_its_own_gradient_and_the_average(ranks: tuple[Path, list[dict[str, Any]]], way: str) -> None:
    run = hs.Run(ranks[0] / way)
    for rank, told in enumerate(ranks[1]):
        here = run.rank(rank)
        assert {s.path for s in here.sites if s.label == "local"} == set(told[way]["own"])
        for name, square in told[way]["own"].items():
            local = here[f"{name}:param_grad/local", "l2"]
            assert local.steps.tolist() == [0, 1, 2]
            np.testing.assert_allclose(local.values[-1] ** 2, square, rtol=1e-6)  # all micro-batches together, as they lie in .grad
    mean = run.per_rank("trunk.weight:param_grad/local", "sum").values.mean(axis=1)
    np.testing.assert_allclose(run["trunk.weight:param_grad", "sum"].values, mean, rtol=1e-4, atol=1e-7)
    assert run["trunk.weight:param_grad", "count"].values.tolist() == [32.0] * 3


def test_names_are_those_of_the_users_model(ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    run = hs.Run(ranks[0] / "static_graph")
    assert {s.path for s in run.sites if s.kind == "param"} == {f"{m}.{p}" for m in ("trunk", "branch", "head") for p in ("weight", "bias")}


def test_a_branch_that_one_rank_takes_is_read_there(ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    run = hs.Run(ranks[0] / "find_unused")
    spread = run.per_rank("branch:output", "count")
    assert (spread.ranks.tolist(), spread.values.tolist()) == ([1], [[32.0]] * 3)
    assert run["head:output", "count"].values.tolist() == [16.0] * 3  # though rank 1 numbers its sites in another order
    np.testing.assert_allclose(
        run["trunk:output", "rms"].values ** 2, (run.per_rank("trunk:output", "rms").values ** 2).mean(axis=1), rtol=1e-9
    )


def test_a_rank_with_more_batches_goes_on_alone(ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    run = hs.Run(ranks[0] / "join")
    assert (run.rank(0).steps.tolist(), run.rank(1).steps.tolist()) == ([0, 1, 2], [0, 1, 2, 3, 4])
    assert run["trunk:output", "count"].values.tolist() == [64.0, 64.0, 64.0, 32.0, 32.0]
    assert run["trunk.weight:param", "count"].values.tolist() == [32.0] * 5
    assert run.uneven_steps.tolist() == []
