"""Rewriting many small batches as few large ones."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from hookscope._core._errors import RunUnreadableError
from hookscope._record import Meta, Run, RunWriter
from hookscope._record._tail import SegmentTail

from ._frames import SITES, plain_frame


def batches(segment: Path) -> list[int]:
    """The rows of each batch, by Arrow's own reader."""
    return [batch.num_rows for batch in pa.ipc.open_stream(segment.read_bytes())]


def writer_of(to: Path) -> RunWriter:
    writer = RunWriter(to, Meta())
    writer.sites(SITES)
    return writer


def flush_steps(writer: RunWriter, steps: range) -> None:
    for step in steps:
        writer.frame(plain_frame(step))
        writer.flush()


def test_a_hundred_and_twenty_eight_small_batches_become_one(tmp_path: Path) -> None:
    writer, folder = writer_of(tmp_path), tmp_path / "frames/rank-00000"
    flush_steps(writer, range(130))
    assert batches(folder / "000001.arrows") == [128 * 6]
    assert batches(folder / "000002.arrows") == [6, 6]
    writer.close("finished")
    assert batches(folder / "000002.arrows") == [12]
    assert sorted(p.name for p in folder.iterdir()) == ["000001.arrows", "000002.arrows"]
    run = Run(tmp_path)
    assert run.steps.tolist() == list(range(130))
    assert run["loss"].values.tolist() == [step + 1.0 for step in range(130)]
    assert run["fc.weight:update", "count"].values.tolist() == [2.0] * 130


def test_large_batches_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookscope._record._compact.SMALL_ROWS", 6)
    writer = writer_of(tmp_path)
    flush_steps(writer, range(3))
    writer.close("finished")
    assert batches(tmp_path / "frames/rank-00000/000001.arrows") == [6, 6, 6]


def test_a_reader_that_follows_sees_every_row_once(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    flush_steps(writer, range(50))
    run = Run(tmp_path)
    flush_steps(writer, range(50, 200))
    assert run.refresh()
    assert run.rows().step.tolist() == [step for step in range(200) for _ in range(6)]
    flush_steps(writer, range(200, 210))
    writer.close("finished")
    assert run.refresh()
    assert run.rows().step.tolist() == [step for step in range(210) for _ in range(6)]
    assert run["loss"].values.tolist() == [step + 1.0 for step in range(210)]
    assert not run.refresh()


def test_a_rewritten_file_may_begin_in_the_middle_of_what_is_known(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    flush_steps(writer, range(3))
    segment = tmp_path / "frames/rank-00000/000001.arrows"
    tail = SegmentTail(segment)
    assert [batch.num_rows for batch in tail.read()] == [6, 6, 6]
    flush_steps(writer, range(3, 5))
    writer.close("finished")
    assert batches(segment) == [30]
    (news,) = tail.read()
    assert news["step"].to_pylist() == [3] * 6 + [4] * 6
    assert tail.read() == []


def test_without_room_for_a_copy_the_small_batches_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes, *, durable: bool) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hookscope._record._compact.replace_file", full)
    writer = writer_of(tmp_path)
    flush_steps(writer, range(3))
    writer.close("finished")
    assert batches(tmp_path / "frames/rank-00000/000001.arrows") == [6, 6, 6]
    assert Run(tmp_path).meta.status == "finished"


def test_a_segment_that_does_not_read_back_whole_is_not_replaced(tmp_path: Path) -> None:
    writer, segment = writer_of(tmp_path), tmp_path / "frames/rank-00000/000001.arrows"
    flush_steps(writer, range(3))
    with segment.open("r+b") as file:  # the second batch goes bad on the disk
        file.seek(segment.stat().st_size // 2)
        file.write(b"\xa5" * 300)
    damaged = segment.read_bytes()
    writer.close("finished")
    assert segment.read_bytes()[: len(damaged)] == damaged


def test_what_a_kill_within_the_rewriting_left_is_removed_by_the_next_writer(tmp_path: Path) -> None:
    writer_of(tmp_path)
    left = tmp_path / "frames/rank-00000/.000001.arrows.1.tmp"
    left.write_bytes(b"half")
    assert Run(tmp_path).unread_bytes == 0
    RunWriter(tmp_path, Meta(), resume=True)
    assert not left.exists()


def test_refreshing_a_run_that_was_moved_away_says_so(tmp_path: Path) -> None:
    run = Run(writer_of(tmp_path / "run").path)
    (tmp_path / "run").rename(tmp_path / "gone")
    with pytest.raises(RunUnreadableError, match="there is no such directory"):
        run.refresh()
