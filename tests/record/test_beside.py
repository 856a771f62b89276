"""A writer beside the training never makes it wait, writes the same files, and is in nobody's way when the process forks or ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hookscope._core._frame import Frame
from hookscope._core._site import Site
from hookscope._record import Meta, Run, RunWriter
from hookscope._record._beside import Beside
from hookscope._record._segment import Segment

from ._frames import SITES, plain_frame

PATIENCE = 30.0  # seconds; what takes them hangs


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The disk takes nothing until the event is set."""
    free, append = threading.Event(), Segment.append

    def waiting(self: Segment, batch: object) -> None:
        assert free.wait(PATIENCE)
        append(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(Segment, "append", waiting)
    yield free
    free.set()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush is due at every twelfth row, and never because of the time."""
    monkeypatch.setattr("hookscope._record._buffer.FrameBuffer.__init__.__kwdefaults__", {"rows": 12, "clock": lambda: 0.0})


def written(to: Path, *, beside: bool) -> dict[str, bytes]:
    writer = RunWriter(to, Meta(), beside=beside)
    for step in range(700):
        writer.sites(SITES if step < 350 else [*SITES, Site(len(SITES), "late", "output")])
        writer.frame(plain_frame(step))
        writer.event({"event": "skipped", "step": step})
        if step % 97 == 0:
            writer.flush()
    writer.close("finished")
    return {str(path.relative_to(to)): path.read_bytes() for path in to.rglob("*") if path.is_file() and path.name != "run.json"}


@pytest.mark.usefixtures("hasty")
def test_the_files_are_those_of_a_writer_that_works_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookscope._record._segment.SEGMENT_BYTES", 9000)
    beside, at_once = written(tmp_path / "beside", beside=True), written(tmp_path / "once", beside=False)
    assert len(at_once) > 5  # several segments, some of them closed and compacted
    assert beside == at_once
    assert Run(tmp_path / "beside").steps.tolist() == [*range(700)]


@pytest.mark.usefixtures("hasty")
def test_a_disk_that_hangs_makes_nobody_wait_and_what_it_cannot_take_is_counted(
    tmp_path: Path, stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Beside.__init__, "__kwdefaults__", {"most": 88 * 12 * 10})
    writer = RunWriter(tmp_path, Meta(), beside=True)
    writer.sites(SITES)
    began = time.perf_counter()
    for step in range(1000):
        writer.frame(plain_frame(step))
    assert time.perf_counter() - began < PATIENCE / 2
    assert writer._beside._waiting <= 88 * 12 * 10
    stuck.set()
    writer.close("finished")
    run = Run(tmp_path)
    assert run.steps.tolist() == [*range(20)]  # ten batches of two frames
    assert run.events == [{"event": "frames_dropped", "by": "disk", "frames": 980, "last_step": 999}]


@pytest.mark.usefixtures("hasty")
def test_what_comes_after_a_hang_is_recorded_again(tmp_path: Path, stuck: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Beside.__init__, "__kwdefaults__", {"most": 88 * 12 * 2})
    writer = RunWriter(tmp_path, Meta(), beside=True)
    for step in range(10):
        writer.frame(plain_frame(step))
    stuck.set()
    writer.flush()
    for step in range(10, 14):
        writer.frame(plain_frame(step))
    writer.close("finished")
    assert Run(tmp_path).steps.tolist() == [0, 1, 2, 3, 10, 11, 12, 13]
    assert Run(tmp_path).events[-1]["frames"] == 6


@pytest.mark.usefixtures("hasty")
def test_a_failure_is_raised_by_the_next_call_and_the_rows_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RunWriter(tmp_path, Meta(), beside=True)

    def full(self: Segment, batch: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "append", full)
        with pytest.raises(OSError, match="No space left"):  # noqa: PT012  # which call it is depends on how soon the thread gets to it
            for number in range(4):
                writer.frame(plain_frame(number))
                writer._beside.rest()
        with pytest.raises(OSError, match="No space left"):
            writer.flush()
    writer.close("failed")
    run = Run(tmp_path)
    assert (run.steps.tolist(), run.meta.status) == ([*range(number + 1)], "failed")


def test_there_is_a_thread_only_while_there_is_work(tmp_path: Path) -> None:
    threads = threading.active_count()
    writers = [RunWriter(tmp_path / str(i), Meta(), beside=True) for i in range(5)]
    assert threading.active_count() == threads
    for writer in writers:
        writer.frame(plain_frame(0))
        writer.flush()
    assert threading.active_count() == threads
    for writer in writers:
        writer.close("finished")
    assert [Run(tmp_path / str(i)).steps.tolist() for i in range(5)] == [[0]] * 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.usefixtures("hasty")
def test_a_child_is_forked_when_the_thread_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Segment.append

    def slow(self: Segment, batch: object) -> None:
        time.sleep(0.2)
        append(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(Segment, "append", slow)
    writer = RunWriter(tmp_path, Meta(), beside=True)
    writer.frame(plain_frame(0))
    writer.frame(plain_frame(1))
    assert writer._beside._thread is not None
    tasks = Path("/proc/self/task")
    child = os.fork()
    if not child:
        alone = writer._beside._thread is None and not writer._beside._lock.locked()
        os._exit(0 if alone and (not tasks.exists() or len(list(tasks.iterdir())) == 1) else 1)
    assert os.waitpid(child, 0)[1] == 0
    writer.close("finished")
    assert Run(tmp_path).steps.tolist() == [0, 1]


def test_garbage_found_by_the_writing_thread_closes_its_own_writer_without_waiting_for_itself(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, Meta(), beside=True)
    writer._beside.hand(lambda: writer.close("finished"))
    writer._beside.hand(lambda: writer._append([plain_frame(0)]))
    writer._beside.rest()
    run = Run(tmp_path)
    assert (run.steps.tolist(), run.meta.status) == ([0], "finished")


def test_where_no_thread_can_be_started_the_work_is_done_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    writer = RunWriter(tmp_path, Meta(), beside=True)
    writer.frame(plain_frame(0))
    writer.flush()
    writer.frame(plain_frame(1))
    writer.close("finished")
    assert Run(tmp_path).steps.tolist() == [0, 1]


def test_many_threads_may_hand_over_and_nothing_is_lost_or_done_twice() -> None:
    beside, done = Beside(threaded=True), []

    def hand(first: int) -> None:
        for i in range(first, first + 500):
            beside.hand(lambda i=i: done.append(i))  # type: ignore[misc]

    threads = [threading.Thread(target=hand, args=(first,)) for first in range(0, 4000, 500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    beside.drain()
    assert sorted(done) == [*range(4000)]
    assert all(list(filter(lambda i: f <= i < f + 500, done)) == [*range(f, f + 500)] for f in range(0, 4000, 500))


def test_one_that_is_dropped_is_freed() -> None:
    beside = Beside(threaded=True)
    beside.hand(lambda: None)
    beside.drain()
    gone = weakref.ref(beside)
    del beside
    gc.collect()
    assert gone() is None


ENDS = """
import sys, time
sys.path.insert(0, sys.argv[2])
from _frames_alone import plain_frame
from hookscope._record import Meta, RunWriter
from hookscope._record._segment import Segment
append = Segment.append
def slow(self, batch):
    time.sleep(0.02)
    append(self, batch)
Segment.append = slow
writer = RunWriter(sys.argv[1], Meta(), beside=True)
for step in range(20):
    writer.frame(plain_frame(step))
    writer._hand_over()
{end}
"""


@pytest.mark.parametrize("end", ["pass", "import atexit; atexit.register(writer.close, 'finished')", "raise SystemExit(0)"])
def test_a_program_that_ends_waits_for_what_was_handed_over(end: str, tmp_path: Path) -> None:
    (tmp_path / "_frames_alone.py").write_text((Path(__file__).parent / "_frames.py").read_text())
    command = [sys.executable, "-W", "error", "-c", ENDS.format(end=end), str(tmp_path / "run"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stderr == ""
    assert Run(tmp_path / "run").steps.tolist() == [*range(20)]


def trained_like(step: int, sites: int, chance: np.random.Generator) -> Frame:
    """What a step of some layers looks like: whole counts, sums of float32 numbers, extremes that are float32."""
    values = chance.normal(size=(sites, 64)).astype(np.float32)
    whole = values.astype(np.float64)
    stats = np.stack(
        [np.full(sites, 64.0), *np.zeros((3, sites)), whole.sum(1), np.square(whole).sum(1), whole.min(1), whole.max(1)], axis=1
    )
    at = np.arange(sites, dtype=np.int32)
    return Frame(step, np.zeros(sites, np.int32), at, np.zeros(sites, np.int32), at, stats)


def test_a_recorded_row_takes_no_more_than_thirty_bytes_on_disk(tmp_path: Path) -> None:
    writer, chance = RunWriter(tmp_path, Meta(), beside=True), np.random.default_rng(0)
    for step in range(60):
        writer.frame(trained_like(step, 231, chance))
        if step % 10 == 9:
            writer.flush()
    writer.close("finished")
    size = sum(path.stat().st_size for path in (tmp_path / "frames").rglob("*.arrows"))
    assert size / (60 * 231) < 30
