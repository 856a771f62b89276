"""The command as a user types it: exit statuses, one line for an error, no escape codes in a pipe."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hookscope import __version__

from ..report._runs import deep, stats

pytestmark = pytest.mark.slow


def hookscope(*args: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "NO_COLOR", "COLUMNS")}
    command = [sys.executable, "-W", "error", "-m", "hookscope", *map(str, args)]
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", env={**clean, "PYTHONUTF8": "1", **(env or {})}, check=False, timeout=60
    )


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deep(3, 12).write(tmp_path_factory.mktemp("runs") / "healthy")


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = deep(3, 12)
    made.module(12, "h.1.fc", 1, rms=stats(1.0, nan=1))
    made.module(12, "", 2, cls="Model", rms=stats(1.0, nan=4))
    made.loss(12, stats(1.0, 1, nan=1))
    return made.write(tmp_path_factory.mktemp("runs") / "sick")


def test_the_version_is_printed() -> None:
    done = hookscope("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"hookscope {__version__}\n", "")


def test_help_names_every_verb_with_its_sentence() -> None:
    done = hookscope("--help")
    assert done.returncode == 0
    for verb, words in (("show", "a recorded run"), ("diagnose", "what went wrong"), ("demo", "real digits")):
        assert re.search(rf"^\s+{verb}\b", done.stdout, re.MULTILINE)
        assert words in " ".join(hookscope(verb, "--help").stdout.split())


def test_an_unknown_verb_is_wrong_use_and_names_what_was_meant() -> None:
    done = hookscope("diagnos", "x")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("hookscope: unknown verb 'diagnos': did you mean 'diagnose'? choose one of ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("show",), "the following arguments are required: RUN"),
        (("diagnose", "x", "--fail-on", "sometimes"), "invalid choice: 'sometimes'"),
        (("show", "x", "--step", "last"), "argument --step: invalid int value: 'last'"),
        (("show", "x", "--depth", "-1"), "--depth -1 is below the model itself"),
        (("show", "x", "--colour"), "unrecognized arguments: --colour"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(args: tuple[str, ...], words: str) -> None:
    done = hookscope(*args)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["show", "diagnose"])
def test_a_run_that_cannot_be_read_is_one_line_and_status_3(verb: str, tmp_path: Path) -> None:
    done = hookscope(verb, tmp_path / "nothing")
    assert done.returncode == 3
    assert str(tmp_path / "nothing") in done.stderr
    assert done.stderr.count("\n") == 1


def test_diagnose_answers_by_its_exit_status(healthy: Path, sick: Path) -> None:
    assert hookscope("diagnose", healthy).returncode == 0
    assert hookscope("diagnose", healthy, "--fail-on", "warning").returncode == 0
    assert hookscope("diagnose", sick).returncode == 1
    assert hookscope("diagnose", sick, "--fail-on", "warning").returncode == 1
    assert hookscope("diagnose", sick, "--fail-on", "never").returncode == 0


def test_diagnose_json_is_json_alone_and_keeps_the_exit_status(sick: Path) -> None:
    done = hookscope("diagnose", sick, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert (found["format"], found["verdict"], found["steps"]) == (1, "sick", 13)
    first = found["findings"][0]
    assert (first["rule"], first["module"], first["first_step"]) == ("nonfinite-forward", "h.1.fc", 12)


def test_show_in_a_pipe_has_no_escape_codes_and_at_most_100_columns(sick: Path) -> None:
    done = hookscope("show", sick)
    assert done.returncode == 0
    assert "✗ sick" in done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_show_obeys_columns_and_force_color(healthy: Path) -> None:
    narrow = hookscope("show", healthy, env={"COLUMNS": "60"})
    assert max(map(len, narrow.stdout.splitlines())) <= 60
    assert "\x1b[" in hookscope("show", healthy, env={"FORCE_COLOR": "1"}).stdout
    assert "\x1b" not in hookscope("show", healthy, env={"FORCE_COLOR": "1", "NO_COLOR": "1"}).stdout


def test_show_takes_a_step_a_depth_and_a_selection(healthy: Path) -> None:
    done = hookscope("show", healthy, "--step", "3", "--depth", "1", "--select", "h.1.fc")
    assert done.returncode == 0
    assert "at step 3" in done.stdout
    assert "lm_head" not in done.stdout.partition("modules  ")[2]
    assert "(+2 inside)" in done.stdout  # h holds h.1 and h.1.fc


def test_a_step_that_is_not_there_is_wrong_use(healthy: Path) -> None:
    done = hookscope("show", healthy, "--step", "99")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hookscope: step 99 is not in the run: the nearest recorded is 11 (recorded: 0 to 11)\n"


def test_a_selection_that_matches_nothing_is_wrong_use(healthy: Path) -> None:
    done = hookscope("show", healthy, "--select", "h.1.fcc")
    assert done.returncode == 2
    assert "h.1.fc" in done.stderr


def test_a_reader_that_leaves_is_no_error(healthy: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as nobody:
        done = subprocess.run(
            [sys.executable, "-m", "hookscope", "show", str(healthy)],
            stdout=nobody,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.stderr == ""
    assert done.returncode == 141


@pytest.mark.parametrize("arguments", [("show",), ("diagnose", "--json")])
def test_without_any_standard_output_the_exit_status_still_answers(arguments: tuple[str, ...], sick: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "hookscope", *arguments, str(sick)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    assert done.returncode == (0 if arguments == ("show",) else 1)


def test_a_terminal_without_unicode_still_gets_a_picture(sick: Path) -> None:
    done = hookscope("show", sick, env={"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "x sick" in done.stdout
    assert done.stdout.isascii()


@pytest.mark.parametrize("verb", ["show", "diagnose"])
def test_reading_a_run_never_imports_torch(verb: str, healthy: Path) -> None:
    program = "import sys\nfrom hookscope._cli import main\nmain(sys.argv[1:])\nsys.exit(77 if 'torch' in sys.modules else 0)"
    done = subprocess.run([sys.executable, "-c", program, verb, str(healthy)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
