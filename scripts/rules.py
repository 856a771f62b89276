"""Write docs/rules.md from the docstrings of the rules; with --check, only say whether it is up to date."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from hookscope._rules import RULES

PAGE = Path(__file__).parents[1] / "docs" / "rules.md"
HEAD = """# Rules

Every rule is a pure function of a recorded run. This page is written by `python scripts/rules.py` from the rules' own docstrings;
thresholds are the defaults of their keyword arguments.
"""


def thresholds(rule: Callable[..., object]) -> Iterator[str]:
    """One list item for each keyword default."""
    for parameter in inspect.signature(rule).parameters.values():
        if parameter.default is not parameter.empty:
            yield f"- `{parameter.name}` = `{parameter.default!r}`"


def section(rule: Callable[..., object]) -> str:
    """The part of the page on one rule."""
    text = inspect.getdoc(rule)
    if not text:
        sys.exit(f"rule {rule.__name__!r} has no docstring: it is the rule's documentation")
    defaults = "\n".join(thresholds(rule))
    return f"\n## {rule.__name__.strip('_').replace('_', '-')}\n\n{text}\n" + (f"\nThresholds:\n\n{defaults}\n" if defaults else "")


def main() -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if docs/rules.md differs from the docstrings")
    check = parser.parse_args().check
    page = HEAD + "".join(section(rule) for rule in RULES)
    if not check:
        PAGE.write_text(page, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        sys.exit("docs/rules.md is out of date: run python scripts/rules.py")


if __name__ == "__main__":
    main()
