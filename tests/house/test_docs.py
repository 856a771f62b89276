"""Every Python example in the README and the documentation runs, page by page, from top to bottom."""

import ast
import doctest
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ._source import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```python(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fenced example; `skipped` is the reason written after `no-run:`, if it is not to be run."""

    page: Path
    line: int
    code: str
    skipped: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        info = match["info"].strip()
        reason = info.removeprefix("no-run").lstrip(": ") if info.startswith("no-run") else None
        found.append(Block(page, text.count("\n", 0, match.start()) + 2, match["code"], reason))
    return found


def run(block: Block, namespace: dict[str, object]) -> None:
    """Run one block in the namespace of its page; a block with prompts must print what it shows."""
    if ">>> " in block.code:
        example = doctest.DocTestParser().get_doctest(block.code, namespace, block.page.name, str(block.page), block.line)
        runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
        report: list[str] = []
        runner.run(example, out=report.append, clear_globs=False)
        assert not runner.failures, "".join(report)
        namespace.update(example.globs)
    else:
        tree = ast.increment_lineno(ast.parse(block.code), block.line - 1)
        exec(compile(tree, str(block.page), "exec"), namespace)


def run_page(page: Path) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.skipped is None:
            run(block, namespace)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page)


def test_an_example_that_is_not_run_says_why() -> None:
    assert [f"{b.page.name}:{b.line}" for page in PAGES for b in blocks(page) if b.skipped is not None and len(b.skipped) < 10] == []


@pytest.mark.parametrize("code", ["1 / 0", ">>> 1 + 1\n3", "import hookscope as hs\nhs.wacth"])
def test_a_broken_example_is_found(tmp_path: Path, code: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```python\nimport math\n```\n\n```python\n{code}\n```\n")
    with pytest.raises((ZeroDivisionError, AssertionError, AttributeError)):
        run_page(page)


def test_the_page_of_rules_is_the_one_the_docstrings_give() -> None:
    done = subprocess.run([sys.executable, "scripts/rules.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_shows_a_diagnosis() -> None:
    shown = (ROOT / "README.md").read_text(encoding="utf-8").split("<!-- demo:start -->")[1].split("<!-- demo:end -->")[0]
    assert "$ hookscope diagnose" in shown, "run scripts/readme.py"


def test_every_link_between_pages_leads_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))]
    broken = [f"{page.name}: {link}" for page, link in links if ":" not in link and not (page.parent / link).exists()]
    assert broken == []
