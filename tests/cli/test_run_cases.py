"""`hookscope run` on programs as people write them: the same exit status and, byte for byte, the same output."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

CASES = Path(__file__).parents[3] / "shared" / "cases"
PROGRAMS = sorted([*CASES.glob("cases/*.py"), *CASES.glob("controls/*.py")])
QUICK = ("02_where_log_zero_count", "11_activation_checkpointing")
absent = pytest.mark.skipif(not PROGRAMS, reason="the cases are not here: they lie in shared/cases, beside the checkout")


def both(program: Path, folder: Path) -> list[tuple[int, bytes]]:
    """How the program ends by itself and under `hookscope run`."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    ends = []
    for prefix in ([], ["-m", "hookscope", "run", "--to", str(folder / program.stem)]):
        command = [sys.executable, *prefix, str(program)]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, check=False, timeout=240)
        ends.append((done.returncode, done.stdout))
    return ends


def differing(programs: list[Path], folder: Path) -> dict[str, list[tuple[int, bytes]]]:
    """Those that do not end and print the same; two run at a time."""
    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(lambda program: both(program, folder), programs))
    return {program.stem: end for program, end in zip(programs, ends, strict=True) if end[0] != end[1] or end[0][0]}


@absent
def test_a_sick_program_and_a_sound_one_end_and_print_the_same(tmp_path: Path) -> None:
    programs = [program for program in PROGRAMS if program.stem in QUICK]
    assert len(programs) == len(QUICK)
    assert differing(programs, tmp_path) == {}


@absent
@pytest.mark.slow
def test_every_program_ends_and_prints_the_same(tmp_path: Path) -> None:
    assert differing([program for program in PROGRAMS if program.stem not in QUICK], tmp_path) == {}


def test_a_program_that_differs_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text("import sys; print('hookscope' in sys.modules)")
    (tmp_path / "fails.py").write_text("import sys; sys.exit(3)")
    assert set(differing([tmp_path / "it.py", tmp_path / "fails.py"], tmp_path)) == {"it", "fails"}
