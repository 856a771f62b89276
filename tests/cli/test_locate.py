"""`hookscope run --locate`: the script runs once more where the first run left a line unnamed."""

from __future__ import annotations

from pathlib import Path

import pytest

import hookscope as hs

from ._programs import python, watched, write

TRAINING = """
import os, random, signal, sys
import torch
from torch import nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.calls = nn.Linear(4, 8), nn.Linear(8, 2), 0
    def forward(self, x, bad):
        h = self.a(x).relu()
        self.calls += 1  # when the forward alone is run again, it is another call
        return self.b(torch.log(h * 0 - 1) if bad and (self.calls == 6 or how == "known") else h)
how, net = sys.argv[1], Net()
sgd = torch.optim.SGD(net.parameters(), 0.1)
for step in range(12):
    if how == "written" and step == 5:
        with torch.no_grad():
            net.b.weight[0, 0] = float("nan")
    x = torch.randn(3, 4) * (random.random() if how == "unseeded" else 1)
    loss = net(x, step == 5 and how not in ("written", "sound")).square().mean()
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    print(step, loss.item())
    if how == "killed" and step == 6:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
raise SystemExit(3)
"""


def first(run: Path) -> tuple[str, str | None, str, bool]:
    found = hs.diagnose(run).findings[0]
    return found.rule, found.op, "" if found.source is None else found.source["code"], bool(found.evidence.get("exact"))


@pytest.mark.slow
@pytest.mark.parametrize(("how", "status"), [("model", 3), ("unseeded", 3), ("written", 3)])
def test_what_was_not_recorded_is_named_by_a_second_run(tmp_path: Path, how: str, status: int) -> None:
    script = write(tmp_path, TRAINING)
    every = () if how == "written" else ("--every", "10")
    done = watched("--locate", *every, "--to", "run", script, how, cwd=tmp_path)
    assert done.code == status
    if how != "unseeded":
        assert done.out == python(script, how, cwd=tmp_path).out
    assert "hookscope: the script runs a second time, to name the line of what went bad at step" in done.err
    op, code = ("copy_", "net.b.weight[0, 0] = ") if how == "written" else ("log", "torch.log(h * 0 - 1)")
    told = first(tmp_path / "run")
    assert told[:2] == ("nonfinite-weight", op)
    assert code in told[2]
    assert told[3]  # the generators began where those of the first run did
    assert "found by a second run of the script, at step 5" in done.err


@pytest.mark.slow
def test_also_where_the_first_run_was_killed(tmp_path: Path) -> None:
    script = write(tmp_path, TRAINING)
    done = watched("--locate", "--every", "2", "--to", "run", script, "killed", cwd=tmp_path)
    assert (done.code, done.out) == (128 + 9, python(script, "killed", cwd=tmp_path).out)
    assert first(tmp_path / "run")[1:] == (
        "log",
        'return self.b(torch.log(h * 0 - 1) if bad and (self.calls == 6 or how == "known") else h)',
        True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("options", [("sound",), ("known",)])
def test_a_sound_script_and_one_whose_line_is_known_run_once(tmp_path: Path, options: tuple[str, ...]) -> None:
    script = write(tmp_path, TRAINING)
    done = watched("--locate", "--to", "run", script, *options, cwd=tmp_path)
    assert (done.code, done.out) == (3, python(script, *options, cwd=tmp_path).out)
    assert "second time" not in done.err


def test_several_processes_and_resumed_runs_are_refused(tmp_path: Path) -> None:
    script = write(tmp_path, "print(1)")
    done = watched("--locate", "--resume", script, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "--locate runs the script twice, from its start" in done.err
