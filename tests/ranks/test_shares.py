"""Merging over ranks, on rows written by hand: parts count once each, copies once, and what lacks a part is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hookscope as hs
from hookscope._core._frame import Frame
from hookscope._core._site import Site
from hookscope._record import Meta, RunWriter, _source
from hookscope._record._shares import parts_in_all
from hookscope._watch._pace import Pace, interval


@pytest.fixture(autouse=True, params=["whole", "by column"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is read into memory, or as one that is too large for it."""
    if request.param == "by column":
        monkeypatch.setattr(_source, "LARGE", 0)


WEIGHT = Site(0, "fc.weight", "param", module="fc", shape=(4, 2), numel=8)


def stats_of(values: np.ndarray) -> list[float]:
    low, high = (values.min(), values.max()) if values.size else (np.inf, -np.inf)
    return [values.size, 0, 0, (values == 0).sum(), values.sum(), (values**2).sum(), low, high]


def write(to: Path, rank: int, world: int, table: list[Site], steps: dict[int, list[tuple[int, np.ndarray]]]) -> None:
    writer = RunWriter(to, Meta(rank=rank, world_size=world))
    writer.sites(table)
    for step, rows in steps.items():
        site = np.array([number for number, _ in rows], np.int32)
        zero, whole = np.zeros(len(rows), np.int32), np.full(len(rows), -1, np.int32)
        writer.frame(Frame(step, whole, site, zero, whole, np.array([stats_of(values) for _, values in rows])))
    writer.close("finished")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.randoms())
def test_parts_merge_to_the_whole_on_any_mesh(rows: int, cuts: int, copies: int, random: object) -> None:
    import tempfile

    whole = np.random.default_rng(rows * 100 + cuts).normal(size=(rows, 3))
    size = -(-rows // cuts)
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(cuts * copies):
            place = rank % cuts
            part = whole[place * size : (place + 1) * size]
            site = replace(WEIGHT, shape=whole.shape, numel=whole.size, part=f"0:{place}/{cuts}" if cuts > 1 else "", held=part.size)
            write(Path(folder), rank, cuts * copies, [site], {0: [(0, part)]})
        run = hs.Run(folder)
        assert run["fc.weight", "count"].values.tolist() == [whole.size]
        np.testing.assert_allclose(run["fc.weight", "l2"].values, [np.linalg.norm(whole)], rtol=1e-12)
        assert run["fc.weight", "max"].values.tolist() == [whole.max()]


def test_a_step_that_lacks_a_part_has_no_value(tmp_path: Path) -> None:
    for rank in range(2):
        site = replace(WEIGHT, part=f"0:{rank}/2", held=4)
        write(tmp_path, rank, 2, [site], {step: [(0, np.ones(4))] for step in ((0, 1, 2) if rank == 0 else (0, 2))})
    run = hs.Run(tmp_path)
    assert run["fc.weight", "l2"].steps.tolist() == [0, 2]
    assert run.uneven_steps.tolist() == [1]
    assert run.rank(0)["fc.weight", "l2"].steps.tolist() == [0, 1, 2]


def test_ranks_that_number_their_sites_differently_are_read_by_name(tmp_path: Path) -> None:
    other = Site(0, "branch.weight", "param", module="branch", shape=(1,), numel=1)
    write(tmp_path, 0, 2, [WEIGHT], {0: [(0, np.full(8, 2.0))]})
    write(tmp_path, 1, 2, [other, replace(WEIGHT, id=1)], {0: [(0, np.full(1, 7.0)), (1, np.full(8, 2.0))]})
    run = hs.Run(tmp_path)
    assert [s.name for s in run.sites] == ["fc.weight:param", "branch.weight:param"]
    assert (run["fc.weight", "sum"].values.tolist(), run["branch.weight", "sum"].values.tolist()) == ([16.0], [7.0])


def test_a_sampled_part_weighs_what_it_holds(tmp_path: Path) -> None:
    update = replace(WEIGHT, kind="update", shape=(5, 2), numel=10)
    write(tmp_path, 0, 2, [replace(update, part="0:0/2", held=6, sampled=2)], {0: [(0, np.full(2, 3.0))]})
    write(tmp_path, 1, 2, [replace(update, part="0:1/2", held=4, sampled=None)], {0: [(0, np.full(4, 1.0))]})
    run = hs.Run(tmp_path)
    np.testing.assert_allclose(run["fc.weight:update", "l2"].values, [np.sqrt(6 * 9 + 4 * 1)], rtol=1e-12)
    np.testing.assert_allclose(run["fc.weight:update", "mean"].values, [(6 * 3 + 4 * 1) / 10], rtol=1e-12)


def test_a_rank_that_has_nothing_is_named_with_those_that_have(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, [WEIGHT], {0: [(0, np.ones(8))]})
    with pytest.raises(hs.HookscopeError, match="rank 3 has recorded nothing in this run: choose from 0"):
        hs.Run(tmp_path).rank(3)


def test_overwriting_ranks_may_come_in_any_order(tmp_path: Path) -> None:
    for rank in (1, 0):
        RunWriter(tmp_path / "run", Meta(rank=rank, world_size=2), overwrite=True).close("finished")


def test_resuming_ranks_go_on_with_one_step(tmp_path: Path) -> None:
    for rank, last in ((0, 3), (1, 2)):
        write(tmp_path, rank, 2, [WEIGHT], {step: [(0, np.ones(8))] for step in range(last)})
    assert [RunWriter(tmp_path, Meta(rank=rank, world_size=2), resume=True).next_step for rank in (0, 1)] == [3, 3]


def test_parts_of_short_dimensions_are_counted() -> None:
    for length in range(1, 9):
        for cuts in range(1, 6):
            piece = -(-length // cuts)
            filled = sum(1 for at in range(cuts) if range(length)[at * piece : (at + 1) * piece])
            assert parts_in_all(f"0:0/{cuts}", (length,)) == filled


@pytest.mark.parametrize("budget", [0.02, 0.1, 0.001])
def test_ranks_of_any_speed_record_the_same_steps(budget: float) -> None:
    def steps(speed: int) -> list[int]:
        time = iter(range(0, 10**12, speed))
        pace = Pace(None, budget, lambda: next(time) // 3, ranks=2, clock=lambda: next(time))
        return [step for step in range(3000) if pace.recorded(step)]

    slow, fast = steps(10**8), steps(1)
    assert slow == fast
    assert slow[:64] == list(range(64))
    assert set(np.diff(slow)) <= {1, interval(100, budget), interval(10**6, budget), *np.diff([63, *slow[64:66]])}
