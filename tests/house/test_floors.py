"""A file imports only from lower floors, and on its own floor only within its own folder."""

from pathlib import Path

from ._source import PACKAGE, imported, python_files

FLOORS = (
    ("_core",),
    ("_stats", "_taps", "_record"),
    ("_rules", "_origin", "_compare", "_features"),
    ("_watch", "_lab"),
    ("_report",),
    ("integrations", "_cli"),
    ("",),
)
FLOOR = {folder: floor for floor, folders in enumerate(FLOORS) for folder in folders}


def folder_of(name: str) -> str:
    """The folder a dotted name lies in; `""` is the package itself, as a user imports it."""
    part = name.split(".")[1] if "." in name else ""
    return part if part in FLOOR else ""


def violations(package: Path) -> list[str]:
    found = []
    for file in python_files(package):
        here = folder_of(".".join(file.relative_to(package.parent).parts))
        if file == package / "__init__.py":  # the table of lazy names: it knows every floor and imports none
            continue
        for line, name in imported(file, package):
            if name.split(".")[0] != package.name or name == f"{package.name}.__version__":
                continue
            there = folder_of(name)
            as_a_user = there == "" and FLOOR[here] >= FLOOR["_cli"]  # the command and the integrations use the public names
            if there != here and FLOOR[there] >= FLOOR[here] and not as_a_user:
                found.append(f"{file.relative_to(package.parent)}:{line} imports {name}")
    return found


def test_every_import_goes_down_a_floor_or_stays_in_its_folder() -> None:
    assert violations(PACKAGE) == []


def test_every_folder_of_the_package_has_a_floor() -> None:
    assert {folder.name for folder in PACKAGE.iterdir() if list(folder.glob("*.py"))} <= FLOOR.keys()


def test_an_import_up_across_or_out_of_the_front_door_is_found(tmp_path: Path) -> None:
    planted = {
        "_core/a.py": "from .._watch import watch\n",
        "_stats/b.py": "def f():\n    from hookscope._record import Run\n",
        "_rules/c.py": "import hookscope\nfrom .. import Finding\n",
        "_rules/fine.py": "from .._core._site import Site\nfrom ._d import rule\nfrom .. import __version__\nimport numpy\n",
        "_cli/fine.py": "import hookscope as hs\nfrom .._report import show\n",
        "__init__.py": "from ._watch import watch\n",
    }
    for name, text in planted.items():
        (tmp_path / "hookscope" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "hookscope" / name).write_text(text)
    assert violations(tmp_path / "hookscope") == [
        "hookscope/_core/a.py:1 imports hookscope._watch.watch",
        "hookscope/_rules/c.py:1 imports hookscope",
        "hookscope/_rules/c.py:2 imports hookscope.Finding",
        "hookscope/_stats/b.py:2 imports hookscope._record.Run",
    ]
