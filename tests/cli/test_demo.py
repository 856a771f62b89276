"""The demo: three real trainings, read back and explained."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hookscope as hs
from hookscope._cli import main

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    to = tmp_path_factory.mktemp("demo") / "runs"
    env = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "COLUMNS")}
    command = [sys.executable, "-W", "error", "-m", "hookscope", "demo", "--quick", "--to", str(to)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env={**env, "PYTHONUTF8": "1"}, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    return to, done.stdout


def test_the_sound_training_is_healthy_and_learns(demo: tuple[Path, str]) -> None:
    run = hs.Run(demo[0] / "healthy")
    assert hs.diagnose(run).verdict == "healthy"
    loss = run["loss"].values
    assert loss[-1] < 0.7 * loss[0]


def test_the_learning_rate_is_named_first(demo: tuple[Path, str]) -> None:
    first = hs.diagnose(demo[0] / "lr-too-high").findings[0]
    assert (first.rule, first.severity, first.where) == ("lr-too-high", "error", "optimizer")


def test_the_sqrt_is_found_in_the_backward_of_the_loss_at_its_step(demo: tuple[Path, str]) -> None:
    first = hs.diagnose(demo[0] / "sqrt-at-zero").findings[0]
    assert (first.rule, first.where, first.phase, first.first_step) == ("nonfinite-backward", "loss", "backward", 12)


def test_each_training_is_told_with_what_was_planted_and_the_next_commands_follow(demo: tuple[Path, str]) -> None:
    to, told = demo
    pieces = [
        "demo 1 of 3: healthy",
        "✓ healthy",
        "demo 2 of 3: lr-too-high",
        "✗ sick",
        "demo 3 of 3: sqrt-at-zero",
        "✗ sick",
        "hookscope diagnose",
    ]
    place = 0
    for piece in pieces:
        place = told.index(piece, place) + 1
    assert told.count("planted") == told.count("look for") == 3
    assert f"hookscope show {to / 'sqrt-at-zero'}" in told
    assert "\x1b" not in told


def test_without_scikit_learn_the_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert main(["demo"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith("pip install scikit-learn\n")
    assert said.err.count("\n") == 1


def test_a_directory_that_is_not_a_run_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    precious = tmp_path / "healthy" / "thesis.tex"
    precious.parent.mkdir()
    precious.write_text("years of work")
    assert main(["demo", "--quick", "--to", str(tmp_path)]) == 2
    assert precious.read_text() == "years of work"
    assert str(tmp_path / "healthy") in capsys.readouterr().err
