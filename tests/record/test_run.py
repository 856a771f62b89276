"""Reading a run: keys, quantities, merging, and what is said when something is not there."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookscope._core._errors import RunUnreadableError, SelectionError, UsageError
from hookscope._core._site import Site
from hookscope._core._stats import EMPTY, Stats
from hookscope._record import MemoryWriter, Meta, Run, RunWriter

from ._frames import SITES, frame, plain_frame, stats_of


@pytest.fixture
def run() -> Run:
    sink = MemoryWriter()
    sink.sites(SITES)
    for step in range(3):
        sink.frame(plain_frame(step))
    return sink.run


def test_a_series_merges_micro_batches(run: Run) -> None:
    assert run["loss"].steps.tolist() == [0, 1, 2]
    assert run["loss"].values.tolist() == [1.0, 2.0, 3.0]  # the mean of step + 0.5 and step + 1.5
    assert run["fc:output", "mean"].values.tolist() == [1.0, 1.5, 2.0]  # (step + 1 + step + 3) / 4
    assert run["fc:output", "count"].values.tolist() == [4.0, 4.0, 4.0]
    assert run["fc:output", "max"].values.tolist() == [3.0, 3.0, 3.0]


def test_a_path_alone_means_the_output_of_a_module_and_a_parameter_itself(run: Run) -> None:
    assert run["fc"].values.tolist() == run["fc:output", "rms"].values.tolist()
    assert run["fc.weight"].values.tolist() == [math.sqrt(12.5)] * 3  # 3 and 4
    assert run[SITES[1], "l2"].values.tolist() == [5.0] * 3


def test_the_update_ratio_is_the_rms_of_the_update_over_that_of_the_parameter(run: Run) -> None:
    for key in ("fc.weight", "fc.weight:update", "fc.weight:param"):
        assert run[key, "update_ratio"].values == pytest.approx([0.1] * 3, rel=1e-15)
    assert run.series("fc.*", "update_ratio")["fc.weight:param"].values == pytest.approx([0.1] * 3)
    matrix = run.matrix([SITES[2], SITES[1]], "update_ratio")
    assert matrix.values == pytest.approx(np.full((3, 2), 0.1))
    with pytest.raises(UsageError, match="quantity of parameters, and 'fc:output' is none"):
        run.matrix([SITES[0]], "update_ratio")


def test_an_update_ratio_without_an_update_says_what_is_missing() -> None:
    sink = MemoryWriter()
    sink.sites([SITES[1]])
    with pytest.raises(UsageError, match=r"no 'update_ratio' for 'fc\.weight': this run recorded no update of it"):
        sink.run["fc.weight", "update_ratio"]


def test_a_parameter_of_zeros_has_an_infinite_ratio_or_none() -> None:
    sink = MemoryWriter()
    sink.sites(SITES)
    for step, change in enumerate((1.0, 0.0)):
        sink.frame(frame(step, [(-1, 1, 0, -1, stats_of(0.0)), (-1, 2, 0, -1, stats_of(change))]))
    first, second = sink.run["fc.weight", "update_ratio"].values
    assert first == np.inf
    assert np.isnan(second)


def test_one_call_can_be_singled_out() -> None:
    sink = MemoryWriter()
    sink.sites([Site(0, "block", "output")])
    sink.frame(frame(0, [(micro, 0, call, call, stats_of(10.0 * micro + call)) for micro in (0, 1) for call in (0, 1, 2)]))
    assert sink.run["block@2:output", "mean"].values.tolist() == [7.0]  # 2 and 12
    assert sink.run["block", "mean"].values.tolist() == [6.0]
    with pytest.raises(UsageError, match="'block:output' has no call 3: recorded are 0, 1, 2"):
        sink.run["block@3:output"]


def test_a_key_that_names_several_sites_is_an_error_that_lists_them(run: Run) -> None:
    with pytest.raises(SelectionError) as error:
        run["lstm:output", "rms"]
    assert str(error.value) == (
        "'lstm:output' names 2 sites, not one: 'lstm:output[0]', 'lstm:output[1][0]'; "
        "for all of them use run.series('lstm:output', quantity)"
    )
    assert list(run.series("lstm:output", "rms")) == ["lstm:output[0]", "lstm:output[1][0]"]
    assert len(run["lstm:output[1][0]"].steps) == 0


def test_an_unknown_site_names_near_misses(run: Run) -> None:
    with pytest.raises(SelectionError, match=r"fc\.weight"):
        run["fc.wieght"]
    with pytest.raises(SelectionError, match="loss"):
        run["los"]


def test_an_unknown_quantity_names_the_valid_ones(run: Run) -> None:
    with pytest.raises(UsageError, match=r"unknown quantity 'means': did you mean 'mean'"):
        run["loss", "means"]
    with pytest.raises(UsageError, match="unknown quantity"):
        run.matrix([], "means")


def test_sites_are_selected_in_the_selection_language(run: Run) -> None:
    assert [s.name for s in run.sites.select("fc.*:update")] == ["fc.weight:update"]
    assert [s.name for s in run.sites.select("**:output")] == ["fc:output", "lstm:output[0]", "lstm:output[1][0]"]
    assert run.sites[0] == SITES[0]
    assert list(run.sites[1:3]) == list(SITES[1:3])
    assert SITES[6] in run.sites


def test_the_name_of_the_only_model_is_not_shown_and_those_of_two_are() -> None:
    sink = MemoryWriter()
    sink.sites([Site(0, "fc", "output", model="G"), Site(1, "loss", "loss", model="G")])
    assert [s.name for s in sink.run.sites] == ["fc:output", "loss"]
    sink.sites([Site(2, "fc", "output", model="D")])
    assert [s.name for s in sink.run.sites] == ["G.fc:output", "G.loss", "D.fc:output"]


def test_totals_of_a_sampled_site_are_extrapolated() -> None:
    sink = MemoryWriter()
    sink.sites([Site(0, "emb.weight", "param", numel=100, sampled=4), Site(1, "fc.weight", "param", numel=2)])
    sink.frame(frame(0, [(-1, 0, 0, -1, stats_of(1.0, 1.0, 1.0, 0.0)), (-1, 1, 0, -1, stats_of(0.0, 2.0))]))
    run = sink.run
    assert run["emb.weight", "count"].values.tolist() == [100.0]
    assert run["emb.weight", "sum"].values.tolist() == [75.0]
    assert run["emb.weight", "l2"].values == pytest.approx([math.sqrt(75.0)])
    assert run["emb.weight", "mean"].values.tolist() == [0.75]
    assert run.matrix(run.sites, "zeros").values.tolist() == [[25.0, 1.0]]


def test_a_matrix_has_every_step_of_the_run_and_nan_where_a_site_is_absent() -> None:
    sink = MemoryWriter()
    sink.sites(SITES)
    sink.frame(frame(0, [(0, 6, 0, 0, stats_of(1.0))]))
    sink.frame(frame(2, [(0, 0, 0, 0, stats_of(2.0))]))
    sink.frame(frame(7, [(0, 7, 0, 0, stats_of(0.1))]))
    matrix = sink.run.matrix([SITES[0], SITES[6], SITES[0]], "mean")
    assert matrix.steps.tolist() == [0, 2, 7]
    assert matrix.sites == (SITES[0], SITES[6], SITES[0])
    np.testing.assert_array_equal(matrix.values, [[np.nan, 1.0, np.nan], [2.0, np.nan, 2.0], [np.nan] * 3])
    assert sink.run.matrix([], "mean").values.shape == (3, 0)


def test_sums_beyond_every_float_are_values_and_no_warning() -> None:
    sink = MemoryWriter()
    sink.sites([SITES[0]])
    huge = (2.0, 0.0, 0.0, 0.0, np.inf, np.inf, 1e200, 1e308)
    sink.frame(frame(0, [(0, 0, 0, 0, huge), (1, 0, 0, 0, (2.0, 0.0, 0.0, 0.0, -np.inf, 1e308, -1e308, 0.0))]))
    sink.frame(frame(1, [(0, 0, 0, 0, huge), (1, 0, 0, 0, (2.0, 0.0, 0.0, 0.0, 1.0, 1e308, 0.0, 0.0))]))
    mean, std, rms = (sink.run["fc", name].values for name in ("mean", "std", "rms"))
    assert np.isnan([mean[0], std[0], std[1]]).all()
    assert (mean[1], *rms) == (np.inf, np.inf, np.inf)


cell = st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 3), st.integers(0, 2), st.integers(0, 7))


@given(st.lists(cell, unique_by=lambda c: c[:4], max_size=30), st.randoms())
def test_a_step_is_the_merge_of_its_rows_in_any_order(cells: list, chance: object) -> None:
    """Values are whole numbers, so that sums are exact in any order."""
    del chance
    sink, merged = MemoryWriter(), {}
    sink.sites([Site(i, f"m.{i}", "output") for i in range(3)])
    by_step: dict[int, list] = {}
    for step, micro, call, site, value in cells:
        stats = Stats(
            2.0, float(value == 1), float(value == 2), float(value == 0), float(value), float(value**2), -1.0 * value, 1.0 * value
        )
        by_step.setdefault(step, []).append((micro, site, call, call, stats))
        merged[step, site] = merged.get((step, site), EMPTY).merge(stats)
    for step, rows in by_step.items():
        sink.frame(frame(step, rows))
    run = sink.run
    for name in ("count", "nan", "inf", "zeros", "sum", "min", "max"):
        values = run.matrix(run.sites, name).values
        expected = [[getattr(merged.get((step, site)), name, np.nan) for site in range(3)] for step in sorted(by_step)]
        np.testing.assert_array_equal(values, np.reshape(expected, values.shape))
        for site in range(3):
            steps = sorted(step for step, s in merged if s == site)
            got = run[f"m.{site}", name]
            assert got.steps.tolist() == steps
            assert got.values.tolist() == [getattr(merged[step, site], name) for step in steps]


def test_rows_come_in_order_of_execution_and_can_be_cut_by_step(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, Meta())
    for step in (4, 2):  # a second process may add an earlier step later
        writer.frame(
            frame(
                step, [(1, 0, 0, 1, stats_of(1.0)), (1, 1, 0, 0, stats_of(1.0)), (0, 2, 0, 5, stats_of(1.0)), (-1, 3, 0, -1, stats_of(1.0))]
            )
        )
        writer.flush()
    run = Run(tmp_path)
    rows = run.rows()
    assert rows.step.tolist() == [2] * 4 + [4] * 4
    assert rows.site.tolist() == [3, 2, 1, 0] * 2
    assert run.rows(3).step.tolist() == [4] * 4
    assert run.rows(last=3).step.tolist() == run.rows(2, 2).step.tolist() == [2] * 4
    assert len(run.rows(3, 3)) == 0
    assert run.steps.tolist() == [2, 4]


def test_all_ranks_are_read_and_a_replicated_parameter_counts_once(tmp_path: Path) -> None:
    table = [Site(0, "fc", "output"), Site(1, "fc.weight", "param", numel=2), Site(2, "big.weight", "param", numel=4)]
    for rank in (0, 1):
        writer = RunWriter(tmp_path, Meta(rank=rank, world_size=2))
        writer.sites(table)
        whole, shard = stats_of(3.0, 4.0), stats_of(1.0 + rank, 1.0 + rank)
        writer.frame(frame(0, [(0, 0, 0, 0, stats_of(1.0 + 2 * rank)), (-1, 1, 0, -1, whole), (-1, 2, 0, -1, shard)]))
        writer.event({"event": "skipped", "step": 0})
        writer.close("finished")
    run = Run(tmp_path)
    assert run.rows().rank.tolist() == [0, 0, 1, 1, 0, 1]  # the step level first, then the micro-batch
    assert run["fc", "mean"].values.tolist() == [2.0]  # the ranks saw 1 and 3
    assert run["fc.weight", "l2"].values.tolist() == [5.0]
    assert run["big.weight", "sum"].values.tolist() == [6.0]
    assert run.events == [{"event": "skipped", "step": 0}, {"event": "skipped", "step": 0, "rank": 1}]
    assert run.arrow()["rank"].to_pylist() == [0, 0, 1, 1, 0, 1]


def test_an_empty_run_opens(tmp_path: Path) -> None:
    RunWriter(tmp_path, Meta())
    run = Run(tmp_path)
    assert (len(run.steps), len(run.sites), len(run.rows()), run.events) == (0, 0, 0, [])
    assert run.arrow().num_rows == 0
    assert run.matrix([], "rms").values.shape == (0, 0)
    assert "running, 0 steps" in str(run.summary())


def test_no_run_there_says_why(tmp_path: Path) -> None:
    with pytest.raises(RunUnreadableError, match="there is no such directory"):
        Run(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunUnreadableError, match="it is a file; give the directory"):
        Run(tmp_path / "file")
    RunWriter(tmp_path / "base", Meta())
    with pytest.raises(RunUnreadableError, match=rf"holds no run\.json: did you mean '{tmp_path / 'base'}'\?"):
        Run(tmp_path)
    (tmp_path / "run.json").write_text("[1")
    with pytest.raises(RunUnreadableError, match=r"its run\.json was not written by hookscope"):
        Run(tmp_path)


def test_a_newer_format_says_which_hookscope_it_needs(tmp_path: Path) -> None:
    RunWriter(tmp_path, Meta())
    found = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**found, "format": 2, "hookscope": "7.1.0"}))
    with pytest.raises(RunUnreadableError, match=r"written in format 2; .* reads formats up to 1: it needs hookscope 7\.1\.0 or newer"):
        Run(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({**found, "mood": "a field of a later version"}))
    assert Run(tmp_path).meta.status == "running"


def test_an_arrow_stream_that_holds_no_frames_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa

    RunWriter(tmp_path, Meta())
    (tmp_path / "frames/rank-00000/000001.arrows").write_bytes(pa.schema([("step", pa.int64())]).serialize().to_pybytes())
    with pytest.raises(RunUnreadableError, match="is no segment of frames: it lacks the columns call, count"):
        Run(tmp_path)


def test_the_summary_says_how_it_went(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "base", Meta(created="2026-01-01T00:00:00+00:00"))
    writer.sites(SITES)
    for step in range(3):
        writer.frame(plain_frame(step))
    writer.event({"event": "never_fired", "modules": ["lstm", "head"]})
    writer.close("finished")
    summary = Run(tmp_path / "base").summary()
    assert (summary.steps, summary.first_loss, summary.last_loss, summary.status) == (3, 1.0, 3.0, "finished")
    assert dict(summary.sites) == {"output": 3, "param": 1, "update": 1, "param_grad": 1, "loss": 1, "scalar": 1}
    assert summary.never_fired == ("lstm", "head")
    assert summary.duration is not None
    assert summary.duration > 0
    assert summary.bytes == sum(p.stat().st_size for p in (tmp_path / "base").rglob("*") if p.is_file())
    lines = str(summary).splitlines()
    assert lines[0].startswith("base: finished, 3 steps in ")
    assert lines[1].startswith("sites: 8 (3 output, ")
    assert lines[2:] == ["loss: 1 at the first step, 3 at the last", "never fired: lstm, head"]
