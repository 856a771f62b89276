"""The JSON of a diagnosis: exactly these keys, strict JSON, for programs to rely on."""

import json
from dataclasses import fields

import numpy as np
import pytest

from hookscope._core._finding import Diagnosis, Finding, Source
from hookscope._report import diagnosis_json

KEYS = [
    *("rule", "severity", "site", "module", "where", "phase", "op", "source", "first_step", "last_step", "rank", "confidence"),
    *("message", "causes", "advice", "evidence", "explains"),
]


def parsed(*findings: Finding) -> dict[str, object]:
    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    found = json.loads(diagnosis_json(Diagnosis("runs/base", 40, findings)), parse_constant=refuse)
    assert isinstance(found, dict)
    return found


def test_a_healthy_run_has_an_empty_list() -> None:
    assert parsed() == {"format": 1, "run": "runs/base", "steps": 40, "verdict": "healthy", "findings": []}


def test_a_finding_has_all_fields_and_nothing_else() -> None:
    source: Source = {"file": "train.py", "line": 31, "code": "loss.sqrt()"}
    finding = Finding(
        *("nonfinite-backward", "error", "NaN in the gradient.", 12, 39, "loss", "backward"),
        site=":output_grad",
        module="(root)",
        op="SqrtBackward0",
        source=source,
        rank=0,
        confidence=0.9,
        causes=("a", "b"),
        advice=("c",),
        evidence={"nan": 640},
        explains=(1, 2),
    )
    assert parsed(finding)["verdict"] == "sick"
    assert parsed(finding)["findings"] == [
        {
            "rule": "nonfinite-backward",
            "severity": "error",
            "site": ":output_grad",
            "module": "(root)",
            "where": "loss",
            "phase": "backward",
            "op": "SqrtBackward0",
            "source": {"file": "train.py", "line": 31, "code": "loss.sqrt()"},
            "first_step": 12,
            "last_step": 39,
            "rank": 0,
            "confidence": 0.9,
            "message": "NaN in the gradient.",
            "causes": ["a", "b"],
            "advice": ["c"],
            "evidence": {"nan": 640},
            "explains": [1, 2],
        }
    ]


def test_what_is_absent_is_null() -> None:
    (finding,) = parsed(Finding("rule", "warning", "m", 0, 0))["findings"]  # type: ignore[misc]
    assert list(finding) == KEYS
    assert [finding[key] for key in ("site", "module", "op", "source", "rank")] == [None] * 5


def test_the_keys_are_the_fields_of_a_finding() -> None:
    assert set(KEYS) == {field.name for field in fields(Finding)}


def test_nan_and_inf_anywhere_in_the_evidence_become_text() -> None:
    evidence = {
        "a": float("nan"),
        "b": [float("inf"), {"c": -float("inf")}],
        "d": np.float32("nan"),
        "e": np.array([1.5, np.inf]),
        "f": np.int64(3),
    }
    (finding,) = parsed(Finding("rule", "warning", "m", 0, 0, evidence=evidence))["findings"]  # type: ignore[misc]
    assert finding["evidence"] == {"a": "nan", "b": ["inf", {"c": "-inf"}], "d": "nan", "e": [1.5, "inf"], "f": 3}
