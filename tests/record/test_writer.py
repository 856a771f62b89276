"""Writing a run: what lies on disk, and what may be replaced or continued."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookscope._core._errors import RunError, RunExistsError, UsageError
from hookscope._core._frame import Frame
from hookscope._core._site import Site
from hookscope._record import MemoryWriter, Meta, Run, RunWriter, Sink

from ._frames import SITES, frame, plain_frame, stats_of

whole = st.integers(0, 2**53).map(float)
number = st.floats(width=64)
extremes = st.one_of(
    st.just((np.inf, -np.inf)),
    st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False)).map(sorted).map(tuple),
)
rows = st.tuples(
    st.integers(-1, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(-1, 2**31 - 1),
    st.tuples(whole, whole, whole, whole, number, number, extremes).map(lambda r: (*r[:6], *r[6])),
)
frames = st.lists(st.tuples(st.integers(0, 2**62), st.lists(rows, max_size=4)), max_size=4, unique_by=lambda f: f[0])


def record(sink: Sink, recorded: list[Frame]) -> None:
    for one in recorded:
        sink.frame(one)
    sink.close("finished")


@given(frames)
def test_what_is_written_is_read_back_bit_by_bit(tmp_path_factory: pytest.TempPathFactory, made: list) -> None:
    recorded = [frame(step, list(content)) for step, content in made]
    writer, memory = RunWriter(tmp_path_factory.mktemp("run"), Meta()), MemoryWriter()
    record(writer, recorded)
    record(memory, recorded)
    expected = sorted(
        ((f.step, f.micro[i], f.seq[i], f.site[i], f.call[i], f.stats[i].tobytes()) for f in recorded for i in range(len(f))),
        key=lambda r: r[:3],
    )
    for run in (Run(writer.path), memory.run):
        got = run.rows()
        columns = (got.step, got.micro, got.seq, got.site, got.call, (row.tobytes() for row in got.stats))
        assert list(zip(*columns, strict=True)) == expected
        assert run.steps.tolist() == sorted(f.step for f in recorded if len(f))


def test_absence_is_null_on_disk_and_nan_and_inf_are_values(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, Meta())
    nothing = (2.0, 2.0, 0.0, 0.0, np.nan, np.inf, np.inf, -np.inf)
    writer.frame(frame(5, [(-1, 0, 0, -1, nothing), (0, 0, 0, 7, (1.0, 0.0, 1.0, 0.0, 0.0, 0.0, -np.inf, -np.inf))]))
    writer.close("finished")
    table = pa.ipc.open_stream((tmp_path / "frames/rank-00000/000001.arrows").read_bytes()).read_all()
    assert table.schema.names == ["step", "micro", "site", "call", "seq", "count", "nan", "inf", "zeros", "sum", "sumsq", "min", "max"]
    assert [str(t) for t in table.schema.types] == ["int64"] + ["int32"] * 4 + ["int64"] * 4 + ["double"] * 4
    assert table["micro"].to_pylist() == [None, 0]
    assert table["seq"].to_pylist() == [None, 7]
    assert table["min"].to_pylist() == [None, -np.inf]
    assert table["max"].to_pylist() == [None, -np.inf]
    assert np.isnan(table["sum"][0].as_py())
    assert table["sumsq"][0].as_py() == np.inf


def test_run_json_says_who_recorded_what_and_how_it_ended(tmp_path: Path) -> None:
    meta = Meta(torch="2.13.0", selections=("fc.*",), every=10, settings={"on_finding": "warn", "where": Path("x")})
    writer = RunWriter(tmp_path / "deep" / "run", meta)
    found = json.loads((tmp_path / "deep/run/run.json").read_text())
    assert (found["format"], found["torch"], found["selections"], found["every"]) == (1, "2.13.0", ["fc.*"], 10)
    assert found["settings"] == {"on_finding": "warn", "where": "x"}
    assert (found["pid"], found["status"], found["closed"]) == (os.getpid(), "running", None)
    writer.close("failed")
    found = json.loads((tmp_path / "deep/run/run.json").read_text())
    assert found["status"] == "failed"
    assert found["closed"] >= found["created"]
    assert sorted(p.name for p in (tmp_path / "deep/run").iterdir()) == ["events.jsonl", "frames", "run.json"]


def test_sites_survive_the_disk_with_every_field(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, Meta())
    writer.sites(SITES[:3])
    writer.sites(SITES)
    assert tuple(Run(tmp_path).sites) == SITES
    table = pa.ipc.open_file((tmp_path / "sites.arrow").read_bytes()).read_all()
    assert table["name"].to_pylist()[3:6] == ["fc.weight:param_grad/preclip", "lstm:output[0]", "lstm:output[1][0]"]
    assert table["module_class"][0].as_py() == "Linear"


def test_a_site_id_cannot_change_its_meaning(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, Meta())
    writer.sites(SITES)
    with pytest.raises(UsageError, match=r"site 6 of this run is 'loss' and cannot become 'fc2:output'.*ids from 8 on"):
        writer.sites([Site(6, "fc2", "output")])


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_frames_reach_the_disk_after_a_second_or_fifty_thousand_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("hookscope._record._buffer.FrameBuffer.__init__.__kwdefaults__", {"rows": 50_000, "clock": clock})
    writer = RunWriter(tmp_path, Meta())
    clock.now = 0.99
    writer.frame(plain_frame(0))
    assert len(Run(tmp_path).steps) == 0
    clock.now = 1.0
    writer.frame(plain_frame(1))
    assert Run(tmp_path).steps.tolist() == [0, 1]
    row = (0, 0, 0, 0, stats_of(1.0))
    writer.frame(frame(2, [row] * 49_999))
    assert len(Run(tmp_path).steps) == 2
    writer.frame(frame(3, [row]))
    assert Run(tmp_path).steps.tolist() == [0, 1, 2, 3]
    writer.frame(plain_frame(4))
    writer.flush()
    assert Run(tmp_path).steps.tolist() == [0, 1, 2, 3, 4]


def test_a_frame_may_be_reused_once_it_was_given(tmp_path: Path) -> None:
    writer, memory, one = RunWriter(tmp_path, Meta()), MemoryWriter(), plain_frame(0)
    for sink in (writer, memory):
        sink.sites(SITES)
        sink.frame(one)
    one.stats[:] = np.nan
    writer.close("finished")
    assert Run(tmp_path)["loss"].values.tolist() == memory.run["loss"].values.tolist() == [1.0]


def test_a_new_segment_begins_when_one_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookscope._record._segment.SEGMENT_BYTES", 3000)
    writer = RunWriter(tmp_path, Meta())
    for step in range(20):
        writer.frame(plain_frame(step))
        writer.flush()
    writer.close("finished")
    segments = sorted((tmp_path / "frames/rank-00000").iterdir())
    assert [s.name for s in segments[:2]] == ["000001.arrows", "000002.arrows"]
    assert all(s.read_bytes().endswith(b"\xff\xff\xff\xff\0\0\0\0") for s in segments)
    assert Run(tmp_path).steps.tolist() == list(range(20))
    assert Run(tmp_path).unread_bytes == 0


def test_events_are_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, Meta())
    writer.event({"event": "skipped", "step": np.int64(3), "norm": np.float64("inf"), "what": Path("x"), "word": "schräg\n"})
    assert Run(tmp_path).events == [{"event": "skipped", "step": 3, "norm": float("inf"), "what": "x", "word": "schräg\n"}]


def test_an_existing_run_is_neither_replaced_nor_continued_unasked(tmp_path: Path) -> None:
    RunWriter(tmp_path, Meta()).close("finished")
    with pytest.raises(RunExistsError) as error:
        RunWriter(tmp_path, Meta())
    assert str(error.value) == f"a run is already in {tmp_path}: pass resume=True to continue it, or overwrite=True to replace it"
    with pytest.raises(UsageError, match="overwrite=True and resume=True contradict each other"):
        RunWriter(tmp_path, Meta(), overwrite=True, resume=True)


def test_overwriting_removes_the_run_and_nothing_else(tmp_path: Path) -> None:
    old = RunWriter(tmp_path, Meta())
    old.sites(SITES)
    old.frame(plain_frame(9))
    old.event({"event": "skipped", "step": 9})
    old.close("finished")
    (tmp_path / "checkpoint.pt").write_text("dear")
    (tmp_path / "incidents").mkdir()
    (tmp_path / ".run.json.1.tmp").write_text("{")
    new = RunWriter(tmp_path, Meta(), overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.pt", "events.jsonl", "frames", "run.json"]
    run = Run(tmp_path)
    assert (len(run.steps), len(run.sites), run.events) == (0, 0, [])
    assert (new.next_step, new.known_sites) == (0, ())


def test_overwriting_with_fewer_ranks_leaves_nothing_of_the_others(tmp_path: Path) -> None:
    for rank in (0, 1):
        writer = RunWriter(tmp_path, Meta(rank=rank, world_size=2))
        writer.frame(plain_frame(0))
        writer.event({"event": "skipped", "step": 0})
        writer.close("finished")
    RunWriter(tmp_path, Meta(), overwrite=True).close("finished")
    assert len(Run(tmp_path).rows()) == 0
    assert Run(tmp_path).events == []


def test_a_directory_that_is_no_run_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear")
    (tmp_path / "frames").mkdir()
    with pytest.raises(RunError, match=r"refusing to overwrite .*: it holds (frames, )?thesis.tex, but no run.json of hookscope"):
        RunWriter(tmp_path, Meta(), overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "dear"


def test_a_foreign_run_json_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"name": "theirs"}')
    for choice in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(RunError, match=r"run\.json, but no run\.json of hookscope"):
            RunWriter(tmp_path, Meta(), **choice)
    assert (tmp_path / "run.json").read_text() == '{"name": "theirs"}'


def test_resuming_goes_on_with_the_steps_and_the_ids(tmp_path: Path) -> None:
    first = RunWriter(tmp_path, Meta(created="2020-01-01T00:00:00+00:00"))
    first.sites(SITES[:7])
    for step in range(3):
        first.frame(plain_frame(step))
    first.flush()
    with (tmp_path / "events.jsonl").open("ab") as journal:
        journal.write(b'{"event": "half')  # as a kill within the write leaves it
    second = RunWriter(tmp_path, Meta(), resume=True)
    assert second.next_step == 3
    assert second.known_sites == SITES[:7]
    second.sites([SITES[0], SITES[7]])
    second.frame(plain_frame(3))
    second.event({"event": "skipped", "step": 3})
    second.close("finished")
    run = Run(tmp_path)
    assert run.steps.tolist() == [0, 1, 2, 3]
    assert tuple(run.sites) == SITES
    assert run.meta.created == "2020-01-01T00:00:00+00:00"
    assert run.events == [{"event": "resumed", "step": 3}, {"event": "skipped", "step": 3}]


def test_resuming_where_there_is_nothing_begins_at_step_zero(tmp_path: Path) -> None:
    assert RunWriter(tmp_path / "new", Meta(), resume=True).next_step == 0
    assert RunWriter(tmp_path / "new", Meta(), resume=True).next_step == 0


def test_a_file_in_the_way_is_an_error_at_construction(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("dear")
    with pytest.raises(RunError, match="a file of that name is in the way"):
        RunWriter(tmp_path / "file", Meta(), overwrite=True)
    with pytest.raises(RunError, match="Not a directory"):
        RunWriter(tmp_path / "file" / "run", Meta())
    assert (tmp_path / "file").read_text() == "dear"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that nobody can write to")
def test_a_place_that_cannot_be_written_is_an_error_with_the_systems_reason() -> None:
    with pytest.raises(RunError, match=r"cannot write a run to /proc/hookscope: No such file or directory: choose a directory that can"):
        RunWriter("/proc/hookscope", Meta())


def test_closing_takes_one_of_three_words_and_only_counts_once(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, Meta())
    with pytest.raises(UsageError, match="status 'done': choose one of finished, failed, interrupted"):
        writer.close("done")
    writer.close("interrupted")
    writer.close("finished")
    assert Run(tmp_path).meta.status == "interrupted"
    with pytest.raises(RunError, match="is closed: step 4 came too late"):
        writer.frame(plain_frame(4))
