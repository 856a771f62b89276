"""The exception tree is the one that its module draws."""

import inspect
import re

import pytest

from hookscope._core import _errors
from hookscope._core._errors import FindingError, HookscopeError, HookscopeWarning
from hookscope._core._finding import Finding


@pytest.mark.parametrize(
    ("name", "parents"),
    [
        ("HookscopeError", {Exception}),
        ("UsageError", {HookscopeError, ValueError}),
        ("SelectionError", {HookscopeError, ValueError, LookupError}),
        ("AttachError", {HookscopeError, ValueError}),
        ("RunError", {HookscopeError, OSError}),
        ("RunExistsError", {HookscopeError, OSError, _errors.RunError}),
        ("RunUnreadableError", {HookscopeError, OSError, _errors.RunError}),
        ("FindingError", {HookscopeError}),
        ("HookscopeWarning", {UserWarning}),
        ("FindingWarning", {HookscopeWarning}),
    ],
)
def test_an_error_is_caught_by_each_of_its_parents(name: str, parents: set[type[BaseException]]) -> None:
    assert all(issubclass(getattr(_errors, name), parent) for parent in parents)


def test_the_drawn_tree_names_every_class_and_no_other() -> None:
    defined = {name for name, _ in inspect.getmembers(_errors, inspect.isclass) if _.__module__ == _errors.__name__}
    drawn = set(re.findall(r"^[│├└─ ]*(\w+(?:Error|Warning))\b", _errors.__doc__ or "", re.MULTILINE))
    assert drawn == defined


def test_every_error_that_is_raised_is_of_the_one_tree() -> None:
    for name, one in inspect.getmembers(_errors, inspect.isclass):
        if one.__module__ == _errors.__name__:
            assert issubclass(one, HookscopeWarning if name.endswith("Warning") else HookscopeError)


def test_a_finding_error_carries_its_findings_and_shows_their_headlines() -> None:
    findings = (
        Finding("nonfinite-forward", "error", "NaN appears", 12, 12),
        Finding("dead-relu", "warning", "80% never fire", 3, 9),
    )
    error = FindingError(findings)
    assert error.findings is findings
    assert str(error) == "error nonfinite-forward at step 12: NaN appears\nwarning dead-relu at step 3: 80% never fire"
