"""What every file keeps to: one idea, stated first; a size one can read; no printing; no path of anybody's machine."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from ._source import PACKAGE, ROOT, parse, python_files

LONGEST = 300
# Spelled so that this file does not hold what it looks for.
PRIVATE_PATH = re.compile(r"(?<![\w.}])/(work|root)/|/home/(?!user\b)\w|/Users/\w|\b[A-Z]:\\Users")


def prints(file: Path) -> list[int]:
    """The lines of a file that call print."""
    calls = (node for node in ast.walk(parse(file)) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]


def private_paths(text: str) -> list[str]:
    return [line for line in text.splitlines() if PRIVATE_PATH.search(line)]


def files_of_the_project() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_library_code_never_prints() -> None:
    library = [file for file in python_files(PACKAGE) if PACKAGE / "_cli" not in file.parents]
    assert [f"{file.relative_to(PACKAGE)}:{line}" for file in library for line in prints(file)] == []


def test_a_print_is_found_and_one_in_an_example_is_not(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text('"""An idea.\n\n>>> print(1)\n"""\ndef f():\n    print("here")\n')
    assert prints(file) == [6]


def test_every_file_states_its_idea_in_its_first_line() -> None:
    silent = [str(file.relative_to(PACKAGE)) for file in python_files(PACKAGE) if not (ast.get_docstring(parse(file)) or "").strip()]
    assert silent == []


@pytest.mark.parametrize("folder", ["src", "tests", "scripts", "benchmarks"])
def test_no_python_file_is_too_long_to_read(folder: str) -> None:
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in python_files(ROOT / folder)}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST} == {}


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    found = {}
    for file in files_of_the_project():
        try:
            lines = private_paths(file.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue  # a picture or another binary
        if lines:
            found[str(file.relative_to(ROOT))] = lines
    assert found == {}


@pytest.mark.parametrize("path", ["/wo" + "rk/main/a.py", "'/ro" + "ot/x'", "/ho" + "me/ada/x", "/Us" + "ers/ada", "C:" + "\\Users\\ada"])
def test_a_private_path_is_found(path: str) -> None:
    assert private_paths(f"fine\nsee {path}\n") == [f"see {path}"]


@pytest.mark.parametrize("text", ["runs/base", "https://example.org/pages/x", "the work/rest balance", "(root)/x", "$HOME/things/x"])
def test_an_ordinary_path_is_not_taken_for_a_private_one(text: str) -> None:
    assert private_paths(text) == []
