"""Sums of units: against numpy and scipy in float64, merged over any split, on every instruction set and without the kernel."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookscope._stats import _units
from hookscope._stats._unit_stats import RANGES, UnitStats
from hookscope._stats._units import Units

LEVELS = ["torch", *(_units.UNIT_KERNEL.levels() if _units.UNIT_KERNEL else ())]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Torch operations, then every instruction set of the kernel."""
    if request.param == "torch":
        monkeypatch.setattr(_units, "UNIT_KERNEL", None)
        yield request.param
    else:
        kernel = _units.UNIT_KERNEL
        assert kernel is not None
        kernel.use(request.param)
        yield request.param
        kernel.use(kernel.levels()[0])


def summed(tensor: torch.Tensor, axis: int) -> UnitStats:
    units = Units(tensor.shape[axis], tensor.device)
    units.add(tensor, axis)
    return units.stats()


def expected(tensor: torch.Tensor, axis: int) -> dict[str, np.ndarray]:
    """What the fields must be, from all values of a unit at once; moments in numpy's longer floats."""
    rows = tensor.double().movedim(axis, 0).reshape(tensor.shape[axis], -1).numpy()
    finite = np.isfinite(rows)
    long = np.where(finite, rows, 0).astype(np.longdouble)
    n = finite.sum(1)
    mean = long.sum(1) / np.maximum(n, 1)
    off = np.where(finite, long - mean[:, None], 0)
    flat = np.where(finite, rows, 0)
    limits = [2.0**-126, 2.0**-14, 2.0**-6, 448, 57344, 65504, float(torch.finfo(torch.bfloat16).max)]
    tiny = [((np.abs(flat) < limit) & (flat != 0)).sum() for limit in limits[:3]]
    over = [(np.abs(flat) > limit).sum() for limit in limits[3:]]
    return {
        "n": n,
        "nonfinite": (~finite).sum(1),
        "mean": mean,
        **{f"m{k}": (off**k).sum(1) for k in (2, 3, 4)},
        "abs": np.abs(long).sum(1),
        "min": np.where(finite, rows, np.inf).min(1),
        "max": np.where(finite, rows, -np.inf).max(1),
        "positive": (flat > 0).sum(1),
        "zero": ((rows == 0) & finite).sum(1),
        "large": (np.abs(flat) >= 6).sum(1),
        "ranges": np.array([*tiny, *over]),
    }


def assert_equal(found: UnitStats, wanted: dict[str, np.ndarray] | UnitStats, rel: float = 1e-9) -> None:
    get = wanted.__getitem__ if isinstance(wanted, dict) else lambda name: getattr(wanted, name)
    spread = np.sqrt(np.asarray(get("m2"), float) / np.maximum(np.asarray(get("n"), float), 1))
    for field in fields(UnitStats):
        one, other = getattr(found, field.name), np.asarray(get(field.name), float)
        slack = 0.0  # a third moment may vanish, and a mean too: what they are measured by is the spread
        if field.name == "m3":
            slack = rel * np.asarray(get("n"), float) * spread**3
        elif field.name == "mean":
            slack = rel * spread
        with np.errstate(invalid="ignore"):
            right = (np.abs(one - other) <= rel * np.abs(other) + slack) | (one == other)
        assert right.all(), (field.name, one, other)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((300, 5), 1),
        ((7, 33, 130), -1),
        ((2, 3, 4, 4), 1),
        ((5, 6, 7, 7), 1),
        ((3, 40, 300), 1),
        ((64,), 0),
        ((17, 9), 0),
        ((2, 70000, 1), 2),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_sums_of_a_tensor_are_those_of_numpy(level: str, shape: tuple[int, ...], axis: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensor = (torch.randn(shape) * 4 + 3).relu().to(dtype)
    assert_equal(summed(tensor, axis), expected(tensor, axis))


@pytest.mark.parametrize("layout", ["channels_last", "transposed", "strided", "expanded"])
def test_the_layout_in_memory_changes_nothing(level: str, layout: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 24, 5, 6)
    made = {
        "channels_last": x.to(memory_format=torch.channels_last),
        "transposed": x.transpose(2, 3).contiguous().transpose(2, 3),
        "strided": torch.randn(4, 24, 5, 12)[..., ::2],
        "expanded": torch.randn(4, 24, 1, 1).expand(4, 24, 5, 6),
    }[layout]
    assert_equal(summed(made, 1), expected(made, 1))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("shape", [(300, 40), (3, 5, 100)])
def test_values_that_are_not_finite_are_counted_and_enter_nothing_else(level: str, bad: float, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    x[0, 3], x[2, 1] = bad, bad
    found = summed(x, 1)
    assert_equal(found, expected(x, 1))
    assert found.nonfinite.sum() == torch.isinf(x).sum() + x.isnan().sum() > 0


def test_magnitudes_at_the_limits_of_the_formats_fall_on_the_right_side(level: str) -> None:
    """By hand: the largest and smallest normal numbers themselves are inside."""
    values = [
        448.0,
        449.0,
        57344.0,
        60000.0,
        65504.0,
        70000.0,
        3.3895e38,
        3.4e38,
        2.0**-6,
        2.0**-7,
        2.0**-14,
        2.0**-15,
        2.0**-126,
        2.0**-127,
        0.0,
    ]
    x = torch.tensor(values).repeat(20, 1)  # each is a unit of its own, wide enough for vectors only together with others
    ranges = dict(zip(RANGES, summed(x, 1).ranges / 20, strict=True))
    assert ranges == {
        "tiny_float32": 1,
        "tiny_float16": 3,
        "tiny_e4m3": 5,
        "over_e4m3": 7,
        "over_e5m2": 5,
        "over_float16": 3,
        "over_bfloat16": 1,
    }


def test_a_large_mean_costs_no_digits() -> None:
    """Raw sums of fourth powers of numbers near 10,000 with a spread of 0.01 would have none left."""
    torch.manual_seed(0)
    x = torch.randn(4000, 3, dtype=torch.float64) * 0.01 + 1e4
    found = Units(3, x.device)
    for part in x.split(61):
        found.add(part, 1)
    stats = found.stats()
    kurtosis = stats.m4 * stats.n / stats.m2**2
    np.testing.assert_allclose(kurtosis, scipy.stats.kurtosis(x.numpy(), axis=0, fisher=False), rtol=1e-8)


def test_a_constant_unit_has_no_variance_at_all(level: str) -> None:
    stats = summed(torch.full((1000, 20), 0.1), 1)
    assert (stats.m2 == 0).all()
    assert (stats.m4 == 0).all()
    assert (stats.mean == np.float32(0.1)).all()


def test_the_largest_magnitude_is_returned(level: str) -> None:
    units = Units(18, torch.device("cpu"))
    x = torch.zeros(5, 18)
    x[3, 4], x[1, 17] = -7.5, float("inf")
    assert units.add(x, 1) == 7.5
    assert units.add(torch.zeros(0, 18), 1) == 0.0


@settings(max_examples=60)
@given(
    cuts=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    seed=st.integers(0, 99),
    scale=st.sampled_from([1e-6, 1.0, 1e5]),
    mean=st.sampled_from([0.0, 3.0, 1e3]),
)
def test_any_split_over_batches_and_ranks_merges_to_the_whole(cuts: list[int], seed: int, scale: float, mean: float) -> None:
    """Parts with means of their own, so that a merge that forgets the difference of means fails."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(60, 4, generator=generator) * scale + mean * scale * torch.linspace(-1, 1, 60)[:, None]
    bounds = [0, *sorted(cuts), 60]
    parts = [x[a:b] for a, b in itertools.pairwise(bounds)]
    whole, batches = Units(4, x.device), Units(4, x.device)
    whole.add(x, 1)
    ranks = None
    for part in parts:
        batches.add(part, 1)
        rank = Units(4, x.device)
        rank.add(part, 1)
        ranks = rank.stats() if ranks is None else ranks.merge(rank.stats())
    assert ranks is not None
    assert_equal(batches.stats(), whole.stats())
    assert_equal(ranks, whole.stats())
    assert_equal(ranks, expected(x, 1))


def test_all_units_pooled_are_the_moments_of_the_flat_tensor() -> None:
    x = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 8) + torch.arange(7)
    pooled, flat = summed(x, 1).pooled(), x.double().numpy().ravel()
    assert pooled.units == 1
    np.testing.assert_allclose(pooled.m4 * pooled.n / pooled.m2**2, scipy.stats.kurtosis(flat, fisher=False), rtol=1e-10)
    np.testing.assert_allclose([pooled.n[0], pooled.mean[0], pooled.m2[0]], [350, flat.mean(), flat.var() * 350], rtol=1e-12)


def test_a_view_that_stands_for_its_negative_is_read_as_what_it_is(level: str) -> None:
    x = torch.view_as_complex(torch.randn(30, 20, 2, generator=torch.Generator().manual_seed(0))).conj().imag
    assert x.is_neg()
    assert_equal(summed(x, 1), expected(x.resolve_neg(), 1))


@pytest.mark.skipif(_units.UNIT_KERNEL is None, reason="the kernel was not built")
def test_the_kernel_refuses_what_cannot_be() -> None:
    kernel = _units.UNIT_KERNEL
    assert kernel is not None
    with pytest.raises(TypeError, match="takes 7 arguments"):
        kernel.add(1)
    with pytest.raises(ValueError, match="size below 1"):
        kernel.add(0, 1, 0, 1, 0, 0, 0)
    with pytest.raises(ValueError, match="one of levels"):
        kernel.use("sse9")
