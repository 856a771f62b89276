"""Programs that are told to end, or die of an exception, while they are watched: they end as they would have, and leave an incident."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hookscope as hs

pytestmark = [
    pytest.mark.slow,  # each test starts a program that imports torch
    pytest.mark.skipif(os.name != "posix", reason="signals as this system has none"),
]

PROGRAM = """
import os, signal, sys
sys.path.insert(0, {here!r})
import torch
import hookscope as hs
from _small import adam, batch, mlp
model = mlp()
optimizer = adam(model)
{before}
{watch}
for step in range(30):
    optimizer.zero_grad()
    (model(batch(step)) - 1).square().mean().backward()
    {each}
    optimizer.step()
print("ended", flush=True)
"""
TERM = "if step == 12: os.kill(os.getpid(), signal.SIGTERM)"
WATCH = "w = hs.watch(model, optimizer, to=sys.argv[1])"


def ended(to: Path, *, before: str = "", watch: str = WATCH, each: str = TERM) -> tuple[int, str, str]:
    code = PROGRAM.format(here=str(Path(__file__).parent), before=before, watch=watch, each=each)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, str(to)], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


def test_sigterm_ends_the_program_as_ever_and_leaves_frames_and_an_incident(tmp_path: Path) -> None:
    assert ended(tmp_path) == (-signal.SIGTERM, "", "")
    run = hs.Run(tmp_path)
    (incident,) = run.incidents
    assert (incident.step, incident.reason, incident.headline) == (12, "signal", "SIGTERM at step 12")
    assert run.meta.status == "interrupted"
    assert run.steps.tolist()[:12] == [*range(12)]  # none of which a flush had been due for
    assert sorted(set(incident.rows.step.tolist())) == [*range(12)]


def test_a_handler_of_the_programs_is_called_and_decides(tmp_path: Path) -> None:
    handler = "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))"
    assert ended(tmp_path, before=handler) == (7, "", "")
    run = hs.Run(tmp_path)
    assert [(i.step, i.reason) for i in run.incidents] == [(12, "signal")]
    assert run.meta.status == "finished"


def test_the_signal_may_come_while_hookscope_itself_is_at_work(tmp_path: Path) -> None:
    """In the middle of writing a frame: it is heeded when that is done."""
    inside = """
from hookscope._record._writer import RunWriter
frame = RunWriter.frame
def told(self, taken):
    if taken.step == 12:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000): pass
        print("not yet", flush=True)
    frame(self, taken)
RunWriter.frame = told
"""
    assert ended(tmp_path, before=inside, each="pass") == (-signal.SIGTERM, "not yet\n", "")
    run = hs.Run(tmp_path)
    assert run.steps.tolist() == [*range(13)]
    assert [i.reason for i in run.incidents] == ["signal"]


def test_an_exception_that_nobody_catches_is_an_incident_without_a_with(tmp_path: Path) -> None:
    code, _, err = ended(tmp_path, each="if step == 12: raise ZeroDivisionError('mine')")
    assert (code, err.rstrip().splitlines()[-1]) == (1, "ZeroDivisionError: mine")
    (incident,) = hs.Run(tmp_path).incidents
    assert (incident.step, incident.headline) == (12, "ZeroDivisionError at step 12: mine")
