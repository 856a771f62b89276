"""The options of `hookscope run`, and what it says at the end."""

import json
import re
from pathlib import Path

import pytest

import hookscope as hs

from ._programs import TRAINING, Done, python, watched, write

pytestmark = pytest.mark.slow

NO_TORCH = "print('hello')"


def _meta(run: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run / "run.json").read_text())
    return found


def test_without_to_the_runs_of_a_script_are_numbered_and_the_summary_names_them(tmp_path: Path) -> None:
    script = write(tmp_path, NO_TORCH)
    for n in (1, 2):
        done = watched(script, cwd=tmp_path)
        assert done.out == "hello\n"
        assert done.err == (
            f"hookscope: nothing was recorded in runs/train-{n}: no model with parameters was trained\n"
            f"  see it: hookscope show runs/train-{n}\n"
        )
        assert _meta(tmp_path / f"runs/train-{n}")["status"] == "finished"


def test_a_module_lends_its_last_name_to_the_directory(tmp_path: Path) -> None:
    write(tmp_path, NO_TORCH, "package/train.py")
    watched("--quiet", "-m", "package.train", cwd=tmp_path)
    assert (tmp_path / "runs/train-1/run.json").is_file()


def test_quiet_says_nothing(tmp_path: Path) -> None:
    assert watched("--quiet", write(tmp_path, NO_TORCH), cwd=tmp_path) == Done(0, "hello\n", "")


def test_a_directory_that_holds_a_run_is_refused_before_the_script_begins(tmp_path: Path) -> None:
    script = write(tmp_path, NO_TORCH)
    assert watched("--to", "mine", script, cwd=tmp_path).code == 0
    before = (tmp_path / "mine/run.json").read_bytes()
    done = watched("--to", "mine", script, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(r"hookscope: there is a run in \S*mine already: --resume .*, --overwrite .*\n", done.err)
    assert (tmp_path / "mine/run.json").read_bytes() == before


def test_overwrite_replaces_a_run_and_refuses_to_replace_anything_else(tmp_path: Path) -> None:
    script = write(tmp_path, NO_TORCH)
    watched("--to", "mine", script, cwd=tmp_path)
    before = _meta(tmp_path / "mine")["created"]
    assert watched("--to", "mine", "--overwrite", script, cwd=tmp_path).code == 0
    assert _meta(tmp_path / "mine")["created"] != before

    precious = write(tmp_path, "years of work", "thesis/chapter.tex")
    done = watched("--to", "thesis", "--overwrite", script, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "it is not a run" in done.err
    assert precious.read_text() == "years of work"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--every", "0"], "--every 0 is no schedule: give a whole number of steps, 1 or more"),
        (["--every", "often"], "argument --every: invalid int value: 'often'"),
        (["--grad-norm-threshold", "-1"], "--grad-norm-threshold -1 is no limit: give a norm above 0"),
        (["--grad-norm-threshold", "nan"], "--grad-norm-threshold nan is no limit: give a norm above 0"),
        (["--select", "fc:outptu"], "malformed selection 'fc:outptu' at position 3: unknown kind 'outptu': did you mean 'output'?"),
        (["--overwrite", "--resume"], "contradict each other"),
        (["--evry", "3"], "--evry"),
    ],
)
def test_wrong_use_is_one_line_and_status_2_before_the_script_begins(options: list[str], words: str, tmp_path: Path) -> None:
    done = watched(*options, write(tmp_path, NO_TORCH), cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_options_behind_the_script_are_the_scripts(tmp_path: Path) -> None:
    script = write(tmp_path, "import sys; print(sys.argv[1:])")
    assert (
        watched("--quiet", script, "--to", "x", "--every", "0", "--", "-m", cwd=tmp_path).out
        == "['--to', 'x', '--every', '0', '--', '-m']\n"
    )


def test_a_script_that_fails_leaves_a_run_that_says_so(tmp_path: Path) -> None:
    assert watched("--to", "run", write(tmp_path, "1 / 0"), cwd=tmp_path).code == 1
    assert _meta(tmp_path / "run")["status"] == "failed"


def test_a_run_that_the_script_deletes_is_told_in_one_line(tmp_path: Path) -> None:
    done = watched("--to", "run", write(tmp_path, "import shutil; shutil.rmtree('run'); print('gone')"), cwd=tmp_path)
    assert (done.code, done.out) == (0, "gone\n")
    assert re.fullmatch(r"hookscope: not watched to its end: \w+: .*\n", done.err)


def test_a_script_goes_on_where_watching_fails(tmp_path: Path) -> None:
    breaking = "import sys; sys.modules['hookscope._watch'] = None\n"
    done = watched("--to", "run", write(tmp_path, breaking + TRAINING + "print(step() > 0)"), cwd=tmp_path)
    assert (done.code, done.out) == (0, "True\n")
    assert done.err.startswith("hookscope: not watched to its end: ModuleNotFoundError: ")
    assert "Traceback" not in done.err


@pytest.mark.slow
def test_every_and_select_choose_what_is_recorded_and_resume_goes_on_counting(tmp_path: Path) -> None:
    script = write(tmp_path, TRAINING + "for _ in range(5): step()")
    options = ["--to", "run", "--every", "2", "--select", "0:output", "--select", "1.weight:param"]
    done = watched(*options, script, cwd=tmp_path)
    assert done.err == "hookscope: 3 step(s) recorded in run: healthy\n  see it: hookscope show run\n"
    run = hs.Run(tmp_path / "run")
    assert run.steps.tolist() == [0, 2, 4]
    assert {site.name for site in run.sites if site.kind != "scalar"} == {"0:output", "1.weight:param", "loss"}

    assert watched(*options, "--resume", script, cwd=tmp_path).code == 0
    assert hs.Run(tmp_path / "run").steps.tolist() == [0, 2, 4, 6, 8]


def test_a_selection_that_matches_nothing_is_told_at_the_first_step_and_at_the_end(tmp_path: Path) -> None:
    script = write(tmp_path, TRAINING + "import sys\nstep(); print('stepped', file=sys.stderr); step()")
    done = watched("--select", "0:output", "--select", "3.weight", script, cwd=tmp_path)
    said = "no site matches '3.weight': "
    first, stepped, last = done.err.partition("stepped\n")
    assert done.code == 0
    assert first.count(f"HookscopeWarning: hookscope: {said}") == 1
    assert stepped
    assert last.count(said) == 1
    assert first.split(said)[1].splitlines()[0] == last.split(said)[1].splitlines()[0]


RAISING = """
import math
for i in range(5):
    before = [p.clone() for p in model.parameters()]
    try:
        step(torch.full((4, 2), math.nan if i == 2 else 1.0))
    finally:
        print(i, all(map(torch.equal, before, model.parameters())))
"""


@pytest.mark.slow
def test_raise_stops_at_a_nan_before_the_update_and_the_rest_is_the_programs_own(tmp_path: Path) -> None:
    script = write(tmp_path, TRAINING + RAISING)
    done = watched("--raise", "--to", "run", script, cwd=tmp_path)
    assert done.code == 1
    assert done.out == "0 False\n1 False\n2 True\n"  # the third step left the parameters as they were
    assert f'File "{script}"' in done.err
    assert re.search(r"^hookscope\S*FindingError: error nonfinite-input at step 2: ", done.err, re.MULTILINE)
    run = hs.Run(tmp_path / "run")
    assert run.steps.tolist() == [0, 1, 2]
    assert run.meta.status == "failed"
    assert python(script, cwd=tmp_path).out == "0 False\n1 False\n2 False\n3 False\n4 False\n"


@pytest.mark.slow
def test_findings_are_warnings_while_it_runs_and_lines_of_the_summary(tmp_path: Path) -> None:
    script = write(tmp_path, TRAINING + "for i in range(3): step(torch.full((4, 2), float('nan') if i == 1 else 1.0))")
    done = watched(script, cwd=tmp_path)
    assert done.code == 0
    assert "FindingWarning: hookscope: " in done.err
    assert re.search(r"^hookscope: 3 step\(s\) recorded in runs/train-1: sick\n  \S", done.err, re.MULTILINE)
    assert "Warning" not in watched("--quiet", script, cwd=tmp_path).err
