"""Findings and the verdict over them."""

import pytest

from hookscope._core._finding import SEVERITIES, Diagnosis, Finding, Severity, Verdict


def finding(severity: Severity, step: int = 0) -> Finding:
    return Finding("some-rule", severity, "something is so", step, step)


@pytest.mark.parametrize(
    ("severities", "verdict"),
    [
        ((), "healthy"),
        (("info",), "healthy"),
        (("info", "warning"), "warning"),
        (("warning", "error", "info"), "sick"),
        (("error",), "sick"),
    ],
)
def test_the_verdict_is_that_of_the_worst_finding(severities: tuple[Severity, ...], verdict: Verdict) -> None:
    assert Diagnosis("r", 10, tuple(map(finding, severities))).verdict == verdict


@pytest.mark.parametrize(
    ("least", "kept"), [("error", ["error"]), ("warning", ["error", "warning"]), ("info", ["error", "warning", "info"])]
)
def test_at_least_keeps_that_severity_and_the_worse_ones(least: Severity, kept: list[Severity]) -> None:
    diagnosis = Diagnosis("r", 10, tuple(map(finding, SEVERITIES)))
    assert [f.severity for f in diagnosis.at_least(least)] == kept


def test_at_least_keeps_the_causal_order() -> None:
    findings = (finding("warning", 1), finding("info", 2), finding("error", 3))
    assert [f.first_step for f in Diagnosis("r", 10, findings).at_least("warning")] == [1, 3]


def test_a_diagnosis_is_the_sequence_of_its_findings() -> None:
    findings = (finding("error"), finding("info"))
    diagnosis = Diagnosis("r", 10, findings)
    assert tuple(diagnosis) == findings
    assert len(diagnosis) == 2
    assert not Diagnosis("r", 10)


def test_a_diagnosis_prints_its_verdict_and_one_line_a_finding() -> None:
    diagnosis = Diagnosis("r", 10, (finding("error", 4), finding("info", 6)))
    assert str(diagnosis) == (
        "sick: 2 finding(s) in 10 step(s)\n1. error some-rule at step 4: something is so\n2. info some-rule at step 6: something is so"
    )
