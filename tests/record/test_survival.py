"""Whatever happens to the process that records, what was flushed can be read."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hookscope._core._errors import RunUnreadableError
from hookscope._record import Meta, Run, RunWriter
from hookscope._record._tail import SegmentTail

from ._frames import SITES, plain_frame

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("HOOKSCOPE_KILLS", "25"))

WRITE_UNTIL_KILLED = """
import os, sys
import numpy as np
from hookscope._core._frame import Frame
from hookscope._core._site import Site
from hookscope._record import Meta, RunWriter, _segment
_segment.SEGMENT_BYTES = 200_000
writer = RunWriter(sys.argv[1], Meta())
sites = np.arange(200, dtype=np.int32)
zero = np.zeros(200, np.int32)
rng = np.random.default_rng(0)
for step in range(1_000_000):
    if step % 7 == 0:
        writer.sites([Site(i, f"layer.{i}", "output") for i in range(200 + step)])
    stats = rng.normal(size=(200, 8))
    stats[:, :4] = step
    stats[:, 4] = 1000.0 * step + sites
    stats[:, 6:] = [-1.0, 1.0]
    writer.frame(Frame(step, zero, sites, zero, sites, stats))
    writer.event({"event": "skipped", "step": step})
    if step % 3 == 0:
        writer.flush()
        os.write(1, b"%d\\n" % (step + 1))
"""


def killed_writer(to: Path, patience: float, *, from_start: bool, beside: bool) -> int:
    """Run a writer, kill it, and return how many frames it said were flushed."""
    code = WRITE_UNTIL_KILLED.replace("Meta())", f"Meta(), beside={beside})")
    child = subprocess.Popen([sys.executable, "-c", code, str(to)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    said = b"" if from_start else child.stdout.readline()
    time.sleep(patience)
    child.send_signal(signal.SIGKILL)
    said += child.stdout.read()
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    return int(said.split(b"\n")[-2]) if b"\n" in said else 0


@pytest.mark.parametrize("attempt", range(KILLS))
def test_a_killed_run_reads_up_to_its_last_flushed_frame(tmp_path: Path, attempt: int) -> None:
    chance = random.Random(attempt)
    at_birth = attempt % 8 == 7
    patience = chance.uniform(0.05, 0.3) if at_birth else chance.uniform(0, 0.05)
    flushed = killed_writer(tmp_path / "run", patience, from_start=at_birth, beside=attempt % 2 == 1)
    if flushed == 0 and not (tmp_path / "run" / "run.json").exists():
        with pytest.raises(RunUnreadableError):
            Run(tmp_path / "run")
        return
    run = Run(tmp_path / "run")
    steps = len(run.steps)
    assert steps >= flushed
    rows = run.rows()
    assert rows.step.tolist() == np.repeat(np.arange(steps), 200).tolist()
    assert (rows.stats[:, 0] == rows.step).all()
    assert (rows.stats[:, 4] == 1000.0 * rows.step + rows.site).all()
    assert len(run.events) >= flushed
    assert len(run.sites) >= (200 if steps else 0)
    assert run.summary().status == "killed"
    resumed = RunWriter(tmp_path / "run", Meta(), resume=True)
    assert resumed.next_step == steps
    resumed.sites(resumed.known_sites)
    resumed.frame(plain_frame(steps))
    resumed.close("finished")
    assert len(Run(tmp_path / "run").steps) == steps + 1


@pytest.fixture
def small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, list[int]]:
    """The bytes of the one segment of the run in tmp_path, and how long it was after each of its three flushes."""
    monkeypatch.setattr("hookscope._record._compact.SMALL_ROWS", 0)
    to = tmp_path
    writer = RunWriter(to, Meta())
    writer.sites(SITES)
    segment, ends = to / "frames/rank-00000/000001.arrows", []
    for step in range(3):
        writer.frame(plain_frame(step))
        writer.flush()
        ends.append(segment.stat().st_size)
    writer.close("finished")
    assert segment.stat().st_size == ends[-1] + 8  # the end of the stream is marked
    return segment.read_bytes(), ends


def test_a_truncated_tail_is_read_up_to_the_last_whole_batch(tmp_path: Path, small_run: tuple[bytes, list[int]]) -> None:
    data, ends = small_run
    segment = tmp_path / "frames/rank-00000/000001.arrows"
    for cut in range(len(data), -1, -1):
        os.truncate(segment, cut)
        run = Run(tmp_path)
        assert run.steps.tolist() == [step for step, end in enumerate(ends) if end <= cut], cut
    assert Run(tmp_path).unread_bytes == 0


def test_a_torn_batch_is_counted_in_bytes(tmp_path: Path, small_run: tuple[bytes, list[int]]) -> None:
    data, ends = small_run
    (tmp_path / "frames/rank-00000/000001.arrows").write_bytes(data[: ends[1] + 77])
    assert Run(tmp_path).unread_bytes == 77
    assert "unread: 77 bytes" in str(Run(tmp_path).summary())


def test_a_segment_that_arrives_byte_by_byte_is_read_once_and_whole(tmp_path: Path, small_run: tuple[bytes, list[int]]) -> None:
    data, ends = small_run
    segment = tmp_path / "growing.arrows"
    rows = 0
    with segment.open("wb", buffering=0) as file:
        tail = SegmentTail(segment)
        for end, byte in enumerate(data, 1):
            file.write(bytes([byte]))
            rows += sum(batch.num_rows for batch in tail.read())
            assert rows == 6 * sum(e <= end for e in ends)
    assert tail.unread == 0


def test_a_damaged_batch_does_not_hide_the_segments_around_it(tmp_path: Path, small_run: tuple[bytes, list[int]]) -> None:
    data, ends = small_run
    folder = tmp_path / "frames/rank-00000"
    broken = bytearray(data)
    broken[ends[0] + 4 : ends[0] + 200] = b"\xa5" * 196
    (folder / "000002.arrows").write_bytes(data)
    (folder / "000001.arrows").write_bytes(broken)
    run = Run(tmp_path)
    assert run["loss", "count"].values.tolist() == [4.0, 2.0, 2.0]  # step 0 stands in both files, the others in one
    assert run.unread_bytes == len(data) - ends[0]


FILL_THE_DISK = """
import resource, sys
sys.path.insert(0, sys.argv[2])
from _frames_alone import SITES, plain_frame
from hookscope._record import Meta, Run, RunWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
writer = RunWriter(sys.argv[1], Meta())
writer.sites(SITES)
flushed = 0
try:
    for step in range(1000):
        writer.frame(plain_frame(step))
        writer.flush()
        flushed = step + 1
except OSError as error:
    print(type(error).__name__, error.errno, flushed)
assert len(Run(sys.argv[1]).steps) == flushed
try:
    writer.close("failed")
except OSError as error:
    print("close", error.errno)
"""


def test_a_full_disk_is_an_os_error_and_what_was_flushed_stays(tmp_path: Path) -> None:
    (tmp_path / "_frames_alone.py").write_text((Path(__file__).parent / "_frames.py").read_text())
    command = [sys.executable, "-W", "error", "-c", FILL_THE_DISK, str(tmp_path / "run"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (kind, number, flushed), close = (line.split() for line in done.stdout.splitlines())
    assert (kind, number, close) == ("OSError", "27", ["close", "27"])  # EFBIG, the limit's own ENOSPC
    run = Run(tmp_path / "run")
    assert run.steps.tolist() == list(range(int(flushed)))
    assert int(flushed) > 3
    assert run.unread_bytes == 0  # the half of a batch that the disk took was cut off again
    assert run.meta.status == "failed"


def test_rows_that_the_disk_refused_are_written_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RunWriter(tmp_path, Meta())
    writer.sites(SITES)
    writer.frame(plain_frame(0))
    write = os.write

    def full(file: int, data: bytes) -> int:
        if len(data) > 100:
            return write(file, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        writer.flush()
    with pytest.raises(OSError, match="No space left"):
        writer.event({"event": "skipped"})
    monkeypatch.undo()
    assert len(Run(tmp_path).steps) == 0
    writer.frame(plain_frame(1))
    writer.close("finished")
    run = Run(tmp_path)
    assert (run.steps.tolist(), run.unread_bytes, run.events) == ([0, 1], 0, [])


def test_a_file_of_a_run_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    RunWriter(tmp_path / "run", Meta()).close("finished")
    (tmp_path / "run" / "events.jsonl").unlink(missing_ok=True)
    (tmp_path / "run" / "events.jsonl").mkdir()
    with pytest.raises(RunUnreadableError, match=r"cannot read the run at .*events\.jsonl: Is a directory"):
        Run(tmp_path / "run")
