"""What importing loads: next to nothing at first, and never torch on the side that reads."""

from pathlib import Path

import pytest

from ._source import PACKAGE, imported, in_fresh_python, python_files

READING = (
    *("import hookscope", "hookscope.Run", "hookscope.diagnose", "hookscope.compare"),
    *("import hookscope._report", "import hookscope._cli"),
)
READING_FOLDERS = ("_core", "_record", "_rules", "_compare", "_report", "_cli")
# Verbs that train or run a model or look at torch itself, and so load it inside their functions.
RUNS_MODELS = ("_cli/_run", "_cli/_demo", "_cli/_check", "_cli/_environment")
SLOW = ("torch", "numpy", "pyarrow", "rich", "pandas", "polars")


def loaded_by(code: str, watched: tuple[str, ...] = SLOW) -> set[str]:
    """Which of the `watched` packages a fresh interpreter holds after `code`."""
    done = in_fresh_python(f"{code}\nimport sys\nprint(*(set({watched!r}) & set(sys.modules)))")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def torch_imports(package: Path) -> list[str]:
    """Where the reading side names torch in an import, even inside a function."""
    files = [file for folder in READING_FOLDERS for file in python_files(package / folder)]
    allowed = tuple(str(package / name) for name in RUNS_MODELS)
    return [
        f"{file.relative_to(package)}:{line}"
        for file in files
        if not str(file).startswith(allowed)
        for line, name in imported(file, package)
        if name.split(".")[0] == "torch"
    ]


def test_importing_hookscope_loads_nothing_slow() -> None:
    assert loaded_by("import hookscope") == set()


def test_the_reading_side_never_loads_torch() -> None:
    assert loaded_by("\n".join(READING), ("torch",)) == set()


def test_the_torch_check_sees_torch_where_it_is_loaded() -> None:
    assert loaded_by("import hookscope\nimport torch", ("torch",)) == {"torch"}


def test_no_file_of_the_reading_side_imports_torch_even_in_a_function() -> None:
    assert torch_imports(PACKAGE) == []


@pytest.mark.parametrize("line", ["import torch.nn", "from torch import nn", "def f():\n    import torch"])
def test_an_import_of_torch_on_the_reading_side_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "_record").mkdir()
    (tmp_path / "_record" / "_reader.py").write_text(line)
    (tmp_path / "_cli").mkdir()
    (tmp_path / "_cli" / "_demo.py").write_text(line)
    assert [place.split(":")[0] for place in torch_imports(tmp_path)] == [str(Path("_record", "_reader.py"))]
