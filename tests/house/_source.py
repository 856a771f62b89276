"""Where the source lies, and what the house rules ask of it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "hookscope"


def python_files(folder: Path) -> list[Path]:
    """Every Python file at or below a folder, sorted."""
    return sorted(folder.rglob("*.py"))


def parse(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def imported(file: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything a file imports, at any depth; relative imports resolved from the folder above `package`."""
    parts = file.relative_to(package.parent).with_suffix("").parts
    for node in ast.walk(parse(file)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(parts[: len(parts) - node.level]) if node.level else ""
            origin = ".".join(part for part in (start, node.module) if part)
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def in_fresh_python(code: str) -> subprocess.CompletedProcess[str]:
    """The outcome of `code` in an interpreter that has imported nothing yet."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
