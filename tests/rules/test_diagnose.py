"""diagnose: which rules run, on what, and what is kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hookscope as hs
from hookscope._core._finding import Finding
from hookscope._record import Run
from hookscope._rules import RULES, rule_id
from hookscope._rules._order import EXPLAINS, PRIORITY

from ._book import NAN, Book

MLP = {"a": "Linear", "b": "Linear", "": "Sequential"}


def sick() -> Run:
    return Book(MLP).step(0, {"a:output": [NAN], "loss:loss": [NAN]}).step(1, {"loss:loss": [NAN]}).run


def test_only_the_rules_asked_for_run() -> None:
    assert [f.rule for f in hs.diagnose(sick(), rules=["nonfinite-loss"])] == ["nonfinite-loss"]


def test_a_rule_of_your_own_runs_beside_ids() -> None:
    def always(run: Run) -> Iterator[Finding]:
        yield Finding("mine", "warning", f"{len(run.steps)} steps", 0, 1)

    assert [f.rule for f in hs.diagnose(sick(), rules=[always, "nonfinite-input"])] == ["mine"]


def test_an_unknown_rule_is_a_usage_error_that_names_the_nearest() -> None:
    with pytest.raises(hs.UsageError, match="unknown rule 'nonfinite-los': did you mean 'nonfinite-loss'"):
        hs.diagnose(sick(), rules=["nonfinite-los"])


def test_a_selection_keeps_findings_on_its_sites() -> None:
    assert [f.rule for f in hs.diagnose(sick(), select="b:output")] == []
    assert [f.module for f in hs.diagnose(sick(), select="a:output")] == ["a"]


def test_a_selection_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(hs.SelectionError):
        hs.diagnose(sick(), select="nowhere")


def test_a_run_without_a_step_is_healthy() -> None:
    assert hs.diagnose(Book(MLP).run).verdict == "healthy"


def test_a_directory_is_opened(tmp_path: Path) -> None:
    with pytest.raises(hs.RunUnreadableError):
        hs.diagnose(tmp_path)


def test_a_run_in_memory_is_named_so() -> None:
    assert (hs.diagnose(sick()).run, hs.diagnose(sick()).steps, hs.diagnose(sick()).verdict) == ("in memory", 2, "sick")


def test_every_rule_has_a_place_in_the_causal_order() -> None:
    ids = {rule_id(rule) for rule in RULES}
    assert set(PRIORITY) == ids
    assert set(EXPLAINS) | {rule for effects in EXPLAINS.values() for rule in effects} <= ids


@pytest.mark.parametrize("rule", RULES, ids=rule_id)
def test_every_rule_documents_what_fires_it_what_it_ignores_and_what_to_do(rule: object) -> None:
    text = rule.__doc__ or ""
    assert [word for word in ("ire", "source", "Ignores", "Causes:", "Do:") if word not in text] == []


def test_the_rules_import_no_torch() -> None:
    code = "import sys, hookscope._rules; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
