"""Quantities against hand arithmetic."""

import math

import numpy as np
import pytest
import torch

from hookscope._core._errors import UsageError
from hookscope._core._quantity import EXTENSIVE, QUANTITIES, quantity
from hookscope._core._stats import EMPTY

# The elements -3, 0, 1, 4, nan, inf: six, of which four are finite.
MIXED = (6.0, 1.0, 1.0, 1.0, 2.0, 26.0, -3.0, math.inf)
# The elements 3, 4.
PLAIN = (2.0, 0.0, 0.0, 0.0, 7.0, 25.0, 3.0, 4.0)
# Two NaNs.
LOST = (2.0, 2.0, 0.0, 0.0, 0.0, 0.0, math.inf, -math.inf)
ROWS = np.array([MIXED, PLAIN, LOST, EMPTY])
NAN = math.nan


@pytest.mark.parametrize(
    ("name", "mixed", "plain", "lost", "empty"),
    [
        ("count", 6, 2, 2, 0),
        ("mean", 0.5, 3.5, NAN, NAN),
        ("std", 2.5, 0.5, NAN, NAN),  # sqrt(26/4 - 0.25), sqrt(25/2 - 12.25)
        ("rms", math.sqrt(6.5), math.sqrt(12.5), NAN, NAN),
        ("l2", math.sqrt(26), 5, 0, 0),
        ("min", -3, 3, NAN, NAN),
        ("max", math.inf, 4, NAN, NAN),
        ("absmax", math.inf, 4, NAN, NAN),
        ("sum", 2, 7, 0, 0),
        ("zeros", 1, 0, 0, 0),
        ("sparsity", 1 / 6, 0, 0, NAN),
        ("nan", 1, 0, 2, 0),
        ("inf", 1, 0, 0, 0),
        ("nonfinite", 2, 0, 2, 0),
    ],
)
def test_every_quantity_is_what_hand_arithmetic_says(name: str, mixed: float, plain: float, lost: float, empty: float) -> None:
    np.testing.assert_allclose(quantity(name, ROWS), [mixed, plain, lost, empty], rtol=1e-15)


def test_the_table_above_holds_every_quantity() -> None:
    parametrized = test_every_quantity_is_what_hand_arithmetic_says.pytestmark[0].args[1]
    assert {row[0] for row in parametrized} == set(QUANTITIES)


def test_quantities_agree_with_torch_in_float64() -> None:
    t = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = np.array([[1000.0, 0.0, 0.0, 0.0, t.sum(), t.square().sum(), t.min(), t.max()]])
    expected = {"mean": t.mean(), "std": t.std(correction=0), "l2": t.norm(), "absmax": t.abs().max(), "rms": t.square().mean().sqrt()}
    for name, value in expected.items():
        np.testing.assert_allclose(quantity(name, rows), [float(value)], rtol=1e-12, err_msg=name)


def test_the_absolute_maximum_is_found_on_the_negative_side() -> None:
    assert quantity("absmax", np.array([(2.0, 0.0, 0.0, 0.0, -4.0, 26.0, -5.0, 1.0)])) == [5.0]


def test_the_spread_of_equal_large_values_is_no_nan() -> None:
    big = 1e8 / 3
    assert quantity("std", np.array([(3.0, 0.0, 0.0, 0.0, 3 * big, 3 * big * big * (1 - 1e-16), big, big)]))[0] >= 0.0


def test_totals_of_a_sample_are_extrapolated_and_ratios_are_not() -> None:
    for name in QUANTITIES:
        factor = (2.0 if name == "l2" else 4.0) if name in EXTENSIVE else 1.0
        np.testing.assert_array_equal(quantity(name, ROWS, scale=4.0), quantity(name, ROWS) * factor, err_msg=name)
    assert {"count", "sum", "zeros", "nan", "inf", "nonfinite", "l2"} == EXTENSIVE


def test_no_quantity_hands_out_the_rows_themselves() -> None:
    rows = ROWS.copy()
    for name in QUANTITIES:
        quantity(name, rows)[:] = -7.0
    np.testing.assert_array_equal(rows, ROWS)


def test_an_unknown_quantity_is_named_with_what_was_meant_and_the_choices() -> None:
    with pytest.raises(UsageError) as caught:
        quantity("spersity", ROWS)
    assert str(caught.value).startswith("unknown quantity 'spersity': did you mean 'sparsity'? choose one of count, mean, std, rms, l2,")
    with pytest.raises(UsageError, match=r"^unknown quantity 'zzz': choose one of count,"):
        quantity("zzz", ROWS)
