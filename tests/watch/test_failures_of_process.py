"""Programs that die, run out of disk or simply end while they are watched: what was flushed reads, and the training was the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hookscope as hs

from ._small import events

pytestmark = pytest.mark.slow  # each test starts a program that imports torch

PROGRAM = """
import hashlib, os, sys
sys.path.insert(0, {here!r})
import torch
import hookscope as hs
from _small import adam, batch, bits, mlp
to = sys.argv[1]
model = mlp()
optimizer = adam(model)
{begin}
for step in range({steps}):
    optimizer.zero_grad()
    (model(batch(step)) - 1).square().mean().backward()
    {each}
    optimizer.step()
print(hashlib.sha256(b"".join(bits(model))).hexdigest(), flush=True)
{end}
"""
WATCH = "hs.watch(model, optimizer, to=to)"
LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))"


def program(to: Path, *options: str, begin: str = WATCH, each: str = "pass", end: str = "", steps: int = 30) -> subprocess.Popen[str]:
    code = PROGRAM.format(here=str(Path(__file__).parent), begin=begin, each=each, end=end, steps=steps)
    command = [sys.executable, *options, "-c", code, str(to)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(child: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    out, err = child.communicate(timeout=120)
    assert child.returncode == code, err
    return out, err


@pytest.fixture(scope="module")
def unwatched(tmp_path_factory: pytest.TempPathFactory) -> str:
    return finished(program(tmp_path_factory.mktemp("none"), begin=""))[0]


def test_a_watch_without_a_with_ends_with_the_program(tmp_path: Path, unwatched: str) -> None:
    out, err = finished(program(tmp_path, "-W", "error"))
    run = hs.Run(tmp_path)
    assert (out, err, run.meta.status, len(run.steps)) == (unwatched, "", "finished", 30)


def test_a_program_that_dies_of_an_exception_leaves_a_failed_run_and_its_own_traceback(tmp_path: Path) -> None:
    child = program(tmp_path, each="if step == 20: raise ZeroDivisionError('mine')")
    _, err = finished(child, code=1)
    run = hs.Run(tmp_path)
    assert (run.meta.status, run.steps.tolist()[:20]) == ("failed", [*range(20)])
    assert err.rstrip().endswith("ZeroDivisionError: mine")
    assert "hookscope" not in err


def test_what_is_found_at_the_very_end_of_a_program_is_told(tmp_path: Path) -> None:
    """The optimizer is not named, so its first step is closed by the end of the program."""
    begin = "hs.watch(model, to=to)"
    _, err = finished(program(tmp_path, begin=begin, each="model[0].weight.grad[0, 0] = float('nan')", steps=1))
    assert len(events(hs.Run(tmp_path), "finding")) == 1
    assert err.count("FindingWarning: hookscope: error nonfinite-weight at step 0") == 1


def test_a_full_disk_costs_the_rest_of_the_run_and_one_warning(tmp_path: Path, unwatched: str) -> None:
    """A limit on the size of each file stands for the full disk; the journal stays below it."""
    child = program(tmp_path, begin=f"w = {WATCH}; {LIMIT.format(12_000)}", each="w._session.flush()", end="w.close()")
    out, err = finished(child)
    assert out == unwatched
    assert err.count("HookscopeWarning: hookscope: recording is switched off at step") == 1
    assert err.count("Warning: ") == 1
    run = hs.Run(tmp_path)
    flushed = len(run.steps)
    assert 0 < flushed < 30
    assert (run.steps.tolist(), run.unread_bytes) == ([*range(flushed)], 0)
    assert [event["part"] for event in events(run, "switched_off")] == ["recording"]


def mount(at: Path) -> bool:
    """Put a file system of 64 KiB there, where that is allowed."""
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(at)], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


def test_a_file_system_that_fills_up_costs_the_rest_of_the_run_and_one_warning(tmp_path: Path, unwatched: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if not mount(disk):
        pytest.skip("no file system may be mounted here")
    try:
        out, err = finished(program(disk / "run", begin=f"w = {WATCH}", each="w._session.flush()", end="w.close()"))
        assert out == unwatched
        assert err.count("No space left on device") == err.count("Warning: ") == 1
        run = hs.Run(disk / "run")
        assert 0 < len(run.steps) < 30
        assert run.steps.tolist() == [*range(len(run.steps))]
    finally:
        subprocess.run(["umount", str(disk)], check=False)


@pytest.mark.parametrize("at", [1, 11, 29])
def test_a_killed_program_leaves_every_step_that_was_flushed(at: int, tmp_path: Path) -> None:
    die = f"if step == {at}: os.kill(os.getpid(), {int(signal.SIGKILL)})"
    child = program(tmp_path, begin=f"w = {WATCH}", each=f"w._session.flush()\n    {die}")
    finished(child, code=-signal.SIGKILL)
    run = hs.Run(tmp_path)
    assert (run.meta.status, run.meta.process_is_gone, run.steps.tolist()) == ("running", True, [*range(at)])
    assert len(run["0:output", "rms"].values) == at


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_neither_writes_to_the_run_nor_ends_it(tmp_path: Path, unwatched: str) -> None:
    fork = "if step == 10 and os.fork() == 0: model(batch(0)).sum().backward(); optimizer.step(); sys.exit(0)"
    out, err = finished(program(tmp_path, each=fork))
    assert (out, err) == (unwatched, "")
    run = hs.Run(tmp_path)
    assert (run.meta.status, run.steps.tolist(), len(events(run, "closed"))) == ("finished", [*range(30)], 1)
