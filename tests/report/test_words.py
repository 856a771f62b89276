"""Numbers and evidence as text."""

import math

import numpy as np
import pytest

from hookscope._report import _words as words


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((0.0, "0"), (1.0, "1.00"), (-12.34, "-12.3"), (123.4, "123"), (9999.0, "9999"), (0.0123, "0.0123"), (0.00104, "1.0e-3")),
        *((12345.0, "1.2e4"), (-1.2e-10, "-1.2e-10"), (math.nan, "NaN"), (math.inf, "Inf"), (-math.inf, "-Inf"), (None, "·")),
    ],
)
def test_a_number_is_short(value: float | None, shown: str) -> None:
    assert words.number(value) == shown


@pytest.mark.parametrize(
    ("octets", "shown"),
    [(0, "0 B"), (812, "812 B"), (24_000, "24 kB"), (1_300_000, "1.3 MB"), (2_000_000_000, "2 GB"), (3 * 10**12, "3 TB")],
)
def test_a_size_has_a_unit(octets: int, shown: str) -> None:
    assert words.size(octets) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.42, "0.42 s"), (12.3, "12 s"), (59.7, "1 min 00 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")]
)
def test_a_duration_is_read_at_a_glance(seconds: float, shown: str) -> None:
    assert words.seconds(seconds) == shown


def test_evidence_is_pairs_with_long_lists_cut() -> None:
    found = words.evidence({"n_bad": 4096, "steps": list(range(9)), "by": {"a": 0.5}, "array": np.array([1.0]), "flag": True})
    assert found == (("n bad", "4,096"), ("steps", "0, 1, 2, 3, 4, 5, … (9)"), ("by", "a 0.500"), ("array", "1.00"), ("flag", "True"))


def test_an_operand_is_read_at_a_glance() -> None:
    operand = {"position": 0, "shape": [32, 10], "dtype": "float32", "min": 0.0, "max": 1.5, "nan": 0, "inf": 3}
    scalar = {**operand, "shape": [], "min": -1.0, "inf": 0}
    found = words.evidence({"operands": [operand, scalar]})
    assert found == (("operands", "32×10 float32 in 0 .. 1.50 with 3 Inf, float32 in -1.00 .. 1.50"),)
