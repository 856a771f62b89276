"""`hookscope run` on programs as people write them: the same exit status and, byte for byte, the same output."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ._programs import environment

pytestmark = pytest.mark.slow

CASES = Path(__file__).parents[3] / "shared" / "cases"
PROGRAMS = sorted([*CASES.glob("cases/*.py"), *CASES.glob("controls/*.py")])
QUICK = ("02_where_log_zero_count", "11_activation_checkpointing")
absent = pytest.mark.skipif(not PROGRAMS, reason="the cases are not here: they lie in shared/cases, beside the checkout")


def ended(prefix: list[str], program: Path, folder: Path) -> tuple[int, bytes, str]:
    """Exit status, output and the end of the error output of a program."""
    env = {**environment(), "PYTHONHASHSEED": "0"}
    command = [sys.executable, *prefix, str(program)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, check=False, timeout=240)
    return done.returncode, done.stdout, done.stderr.decode()[-300:]


def difference(program: Path, folder: Path) -> str:
    """What is not the same by itself and under `hookscope run`; empty if all is, and the program ends well."""
    alone = ended([], program, folder)
    watched = ended(["-m", "hookscope", "run", "--to", str(folder / program.stem)], program, folder)
    if alone[0]:
        return f"status {alone[0]} by itself: {alone[2]}"
    return (
        ""
        if alone[:2] == watched[:2]
        else f"status {watched[0]}, output {'the same' if alone[1] == watched[1] else 'another'}: {watched[2]}"
    )


def differing(programs: list[Path], folder: Path) -> dict[str, str]:
    """Those that do not end and print the same, and how; two run at a time."""
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda program: difference(program, folder), programs)
    return {program.stem: how for program, how in zip(programs, found, strict=True) if how}


@absent
def test_a_sick_program_and_a_sound_one_end_and_print_the_same(tmp_path: Path) -> None:
    programs = [program for program in PROGRAMS if program.stem in QUICK]
    assert len(programs) == len(QUICK)
    assert differing(programs, tmp_path) == {}


@absent
@pytest.mark.skipif("HOOKSCOPE_CASES" not in os.environ, reason="minutes long: HOOKSCOPE_CASES=1 runs every program")
def test_every_program_ends_and_prints_the_same(tmp_path: Path) -> None:
    assert differing([program for program in PROGRAMS if program.stem not in QUICK], tmp_path) == {}


def test_a_program_that_differs_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text("import sys; print('hookscope' in sys.modules)")
    (tmp_path / "fails.py").write_text("import sys; sys.exit(3)")
    (tmp_path / "same.py").write_text("print(1)")
    found = differing([tmp_path / f"{name}.py" for name in ("it", "fails", "same")], tmp_path)
    assert {name: how.partition(":")[0] for name, how in found.items()} == {"it": "status 0, output another", "fails": "status 3 by itself"}
