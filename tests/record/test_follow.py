"""Following a run while another process writes it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from hookscope._record import Meta, Run, RunWriter

from ._frames import SITES, plain_frame

WRITE_SLOWLY = """
import os, sys, time
sys.path.insert(0, sys.argv[2])
from _frames_alone import SITES, plain_frame
from hookscope._record import Meta, RunWriter
writer = RunWriter(sys.argv[1], Meta())
writer.sites(SITES)
os.write(1, b"\\n")
for step in range(30):
    writer.frame(plain_frame(step))
    writer.flush()
    time.sleep(0.01)
if sys.argv[3] == "die":
    os._exit(1)
writer.close(sys.argv[3])
"""


def writer_process(to: Path, end: str) -> subprocess.Popen[bytes]:
    (to.parent / "_frames_alone.py").write_text((Path(__file__).parent / "_frames.py").read_text())
    child = subprocess.Popen([sys.executable, "-c", WRITE_SLOWLY, str(to), str(to.parent), end], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        child.stdout.readline()
    return child


def test_steps_of_a_living_run_arrive_one_by_one_until_it_is_closed(tmp_path: Path) -> None:
    child = writer_process(tmp_path / "run", "finished")
    run = Run(tmp_path / "run")
    before = len(run.steps)
    assert list(run.follow(poll=0.005)) == list(range(30))
    assert before < 30, "the run was over before it could be followed"
    assert run["loss"].values.tolist() == [step + 1.0 for step in range(30)]
    assert run.meta.status == "finished"
    assert child.wait() == 0


def test_following_ends_when_the_process_dies_without_a_word(tmp_path: Path) -> None:
    child = writer_process(tmp_path / "run", "die")
    run = Run(tmp_path / "run")
    followed = run.follow(poll=0.005)
    assert next(followed) == 0
    assert child.wait() == 1  # reaped: before that its number is still taken
    assert list(followed) == list(range(1, 30))
    assert run.summary().status == "killed"


def test_following_gives_up_after_the_timeout(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, Meta())
    writer.frame(plain_frame(0))
    writer.flush()
    begin = time.monotonic()
    assert list(Run(tmp_path).follow(poll=0.01, timeout=0.1)) == [0]
    assert time.monotonic() - begin >= 0.1


def test_a_refresh_reads_sites_events_and_status_too(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, Meta())
    run = Run(tmp_path)
    writer.sites(SITES)
    writer.event({"event": "skipped", "step": 0})
    assert not run.refresh()
    assert (len(run.sites), len(run.events)) == (8, 1)
    writer.frame(plain_frame(0))
    writer.close("failed")
    assert run.refresh()
    assert (run.steps.tolist(), run.meta.status, len(run.events)) == ([0], "failed", 1)
    assert run["loss"].values.tolist() == [1.0]


def test_an_event_is_read_once_its_line_is_whole_and_a_broken_line_is_passed_over(tmp_path: Path) -> None:
    RunWriter(tmp_path, Meta())
    run = Run(tmp_path)
    with (tmp_path / "events.jsonl").open("ab", buffering=0) as journal:
        journal.write(b'{"event": "ski')
        run.refresh()
        assert run.events == []
        journal.write(b'pped", "step": 0}\n{"event": "half\n[1]\n{"event": "skipped", "step": 1}\n')
        run.refresh()
    assert run.events == [{"event": "skipped", "step": 0}, {"event": "skipped", "step": 1}]


def test_a_run_that_was_overwritten_is_read_anew(tmp_path: Path) -> None:
    old = RunWriter(tmp_path, Meta(created="2020-01-01T00:00:00+00:00"))
    for step in range(5):
        old.frame(plain_frame(step))
    old.event({"event": "skipped", "step": 0})
    old.close("finished")
    run = Run(tmp_path)
    new = RunWriter(tmp_path, Meta(), overwrite=True)
    new.frame(plain_frame(9))
    new.flush()
    assert run.refresh()
    assert (run.steps.tolist(), run.events) == ([9], [])
