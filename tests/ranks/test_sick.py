"""What only ranks beside each other show is found in sick trainings of two real ranks, and nothing in the healthy one."""

from __future__ import annotations

from pathlib import Path

import pytest

import hookscope as hs
from hookscope._core._finding import Finding

from ._launch import launched_well

pytestmark = pytest.mark.slow  # two processes, each of which loads torch


@pytest.fixture(scope="module")
def to(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sick")
    launched_well("_sick.py", str(folder), "healthy", "bypass", "seed", "apart", "nan")
    return folder


def of_ranks(run: Path) -> list[Finding]:
    return [f for f in hs.diagnose(hs.Run(run)) if f.rule.startswith("rank-")]


def test_nothing_is_found_in_a_healthy_training(to: Path) -> None:
    assert of_ranks(to / "healthy") == []


def test_a_forward_past_the_wrapper_lets_ranks_diverge(to: Path) -> None:
    found = of_ranks(to / "bypass")
    assert [(f.rule, f.severity, f.first_step, f.last_step) for f in found] == [("rank-divergence", "error", 1, 23)]
    assert found[0].evidence["parameters"] == 4
    assert ".module" in found[0].causes[0]


def test_one_seed_on_all_ranks_gives_one_batch_to_all(to: Path) -> None:
    found = of_ranks(to / "seed")
    assert [(f.rule, f.severity, f.evidence["ranks"]) for f in found] == [("rank-data", "warning", [0, 1])]


def test_a_rank_with_other_targets_stands_apart(to: Path) -> None:
    found = of_ranks(to / "apart")
    assert [(f.rule, f.rank) for f in found] == [("rank-apart", 1)]


def test_the_first_rank_that_goes_bad_is_named(to: Path) -> None:
    first = hs.diagnose(hs.Run(to / "nan")).findings[0]
    assert (first.rule, first.first_step, first.rank) == ("nonfinite-input", 5, 1)
    assert "only on rank 1 of 2" in first.message
