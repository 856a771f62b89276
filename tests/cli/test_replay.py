"""`hookscope replay`: the program runs again up to the incident, and the very line is seen, in the model, behind it and in its backward."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import hookscope as hs
from hookscope._cli._main import main

PROGRAM = """
import sys
import torch
from torch import nn
import hookscope as hs

torch.manual_seed({seed})

class Log(nn.Module):
    def forward(self, x):
        noise = torch.rand(x.shape, generator=drawn)  # which no second run within this one could draw again
        return torch.log(x * x + noise - bad)  # in the model

drawn = torch.Generator().manual_seed({seed})
bad = 0.0
kind, to = sys.argv[1:3]
model = nn.Sequential(nn.Linear(4, 8), Log(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
if to != "none":
    hs.watch(model, optimizer, to=to, on_finding="ignore")
for step in range(6):
    x = torch.randn(8, 4)
    bad = 1e3 if step == 3 and kind == "forward" else 0.0
    optimizer.zero_grad()
    out = model(x)
    loss = out.square().mean()
    if step == 3 and kind == "loss":
        loss = loss + torch.log(-loss)  # in the loss
    if step == 3 and kind == "backward":
        loss = loss + (out * 0).abs().sqrt().sum()  # in its backward
    loss.backward()
    optimizer.step()
    print(step, flush=True)
"""
EXPECTED = {
    "forward": ("in 1: log", "in the model"),
    "loss": ("outside the model: log", "in the loss"),
    "backward": ("sqrt", "in its backward"),
}


def script(folder: Path, seed: str = "0") -> Path:
    path = folder / "train.py"
    path.write_text(PROGRAM.format(seed=seed))
    return path


def recorded_by_itself(path: Path, kind: str, to: Path, monkeypatch: pytest.MonkeyPatch) -> hs.Incident:
    monkeypatch.setattr(sys, "argv", [str(path), kind, str(to)])
    runpy.run_path(str(path), run_name="__main__")
    incident = hs.Run(to).incidents[0]
    assert incident.step == 3
    return incident


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXPECTED)
def test_the_line_is_seen_when_the_program_runs_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = script(tmp_path)
    incident = recorded_by_itself(path, kind, tmp_path / "run", monkeypatch)
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    capfd.readouterr()
    assert main(["replay", str(incident.path), "--script", str(path), kind, str(tmp_path / "run")]) == 0
    out, err = capfd.readouterr()
    what, where = EXPECTED[kind]
    lines = out.splitlines()
    assert lines[0] == incident.headline
    assert lines[1].startswith("  seen again at step 3")
    assert what in lines[1]
    assert lines[2].endswith(f"# {where}")
    assert f"{path}:" in lines[2]
    assert err.split() == ["0", "1", "2"]  # the program's own output; it is stopped within step 3
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


@pytest.mark.slow
def test_a_program_that_hookscope_run_has_watched_needs_no_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = script(tmp_path)
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "hookscope", "run", "--quiet", "--to", "run", path.name, "forward", "none"]
    subprocess.run(command, check=True, capture_output=True)
    capfd.readouterr()
    assert main(["replay", "run/incidents/3"]) == 0
    assert "seen again at step 3, in 1: log" in capfd.readouterr().out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "train.py"]


@pytest.mark.slow
def test_a_program_that_goes_another_way_this_time_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = script(tmp_path)
    incident = recorded_by_itself(path, "loss", tmp_path / "run", monkeypatch)
    assert main(["replay", str(incident.path), "--script", str(path), "healthy", "elsewhere"]) == 1
    assert "not seen: nothing went bad up to step 3 this time; does the program set its seeds?" in capfd.readouterr().out


def test_without_a_program_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    incident = recorded_by_itself(script(tmp_path), "loss", tmp_path / "run", monkeypatch)
    assert main(["replay", str(incident.path)]) == 2
    assert capsys.readouterr().err == (
        f"hookscope: which program wrote {incident.path}? give it: hookscope replay {incident.path} --script train.py [arguments]\n"
    )
    assert main(["replay", str(incident.path), "--script", "nowhere.py"]) == 2
    assert capsys.readouterr().err.startswith("hookscope: cannot run 'nowhere.py': there is no such file")
    assert main(["replay", str(tmp_path / "run")]) == 3
    assert f"give one of '{incident.path}'" in capsys.readouterr().err
    assert main(["diagnose", str(tmp_path / "run"), "--fail-on", "never"]) == 0
    assert f"again:hookscopereplay{incident.path}" in "".join(capsys.readouterr().out.split())  # wherever the lines are broken
