"""Every number of a layer, against numpy and scipy over all activations at once, and against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

import hookscope as hs
from hookscope._lab._analyze import _moment
from hookscope._lab._analyze._layer import Layer


def seen(x: torch.Tensor, **options: object) -> Layer:
    """The analysis of an identity that is given `x` in five batches."""
    return hs.analyze(nn.Identity(), list(x.tensor_split(5)), **options)["(root)"]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    """500 samples of 12 units of different spreads and means, correlated; half of the values cut off, one unit silent."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(500, 12, generator=generator) @ torch.randn(12, 12, generator=generator)
    mixed = (base * torch.linspace(0.1, 3, 12) + 0.2).relu()
    mixed[:, 5] = 0
    return mixed


def test_numbers_of_units_are_those_of_numpy(x: torch.Tensor) -> None:
    layer, a = seen(x), x.double().numpy()
    level = np.abs(a).mean(0)
    np.testing.assert_allclose(layer.scores, level / (level.mean() + 1e-9), rtol=1e-9)
    np.testing.assert_array_equal(layer.dormant(0.1), level / level.mean() <= 0.1)
    np.testing.assert_allclose(layer.sparsity, (a == 0).mean(0))
    np.testing.assert_allclose(layer.rms, np.sqrt((a**2).mean(0)), rtol=1e-9)
    np.testing.assert_allclose(layer.large_share, (np.abs(a) >= 6).mean(0))
    alive = a.std(0) > 0
    np.testing.assert_allclose(layer.kurtosis[alive], scipy.stats.kurtosis(a[:, alive], axis=0, fisher=False), rtol=1e-9)
    assert np.isnan(layer.kurtosis[5])
    treves = (1 - level[alive] ** 2 / (a[:, alive] ** 2).mean(0)) * 500 / 499
    np.testing.assert_allclose(layer.treves_rolls[alive], treves, rtol=1e-9)
    np.testing.assert_array_equal(np.flatnonzero(layer.dead), [5])
    np.testing.assert_array_equal(layer.near_dead(0.4), (a > 0).mean(0) <= 0.4)
    r2 = (a**2).mean(0)
    assert layer.kurtosis_of_units == pytest.approx((r2**2).mean() / r2.mean() ** 2, rel=1e-9)
    assert layer.kurtosis_all == pytest.approx(scipy.stats.kurtosis(a.ravel(), fisher=False), rel=1e-9)


def test_numbers_of_the_spectrum_are_those_of_numpy(x: torch.Tensor) -> None:
    layer, a = seen(x), x.double().numpy()
    values = np.linalg.eigvalsh(np.cov(a.T))[::-1].clip(0)
    s = np.linalg.svd(a - a.mean(0), compute_uv=False)[:11]  # the silent unit is no direction
    p, raw = s / s.sum(), np.linalg.svd(a, compute_uv=False)[:11]
    q = raw / raw.sum()
    np.testing.assert_allclose(layer.eigenvalues, values, rtol=1e-9, atol=1e-12 * values[0])
    assert layer.participation_ratio == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=1e-9)
    assert layer.effective_rank == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-9)
    assert layer.rankme == pytest.approx(np.exp(-(q * np.log(q)).sum()), rel=1e-9)
    assert layer.stable_rank == pytest.approx((s**2).sum() / s[0] ** 2, rel=1e-9)
    assert layer.top_share(3) == pytest.approx(values[:3].sum() / values.sum(), rel=1e-9)
    assert layer.srank() == next(k for k in range(1, 13) if s[:k].sum() / s.sum() >= 0.99)
    assert layer.delve_saturation() == next(k for k in range(1, 13) if values[:k].sum() / values.sum() >= 0.99) / 12


@pytest.mark.parametrize("d", [4, 7])
def test_a_white_layer_uses_all_its_directions_and_a_line_one(d: int) -> None:
    """The corners of a cross have covariance c I: every measure of rank is d. All samples on a line: every one is 1."""
    white = torch.cat([torch.eye(d), -torch.eye(d)]).repeat(10, 1)
    layer = seen(white[torch.randperm(len(white), generator=torch.Generator().manual_seed(0))])
    assert [layer.participation_ratio, layer.effective_rank, layer.stable_rank, layer.srank()] == pytest.approx([d] * 4)
    line = seen(torch.linspace(-1, 1, 50)[:, None] * torch.arange(1.0, d + 1))
    assert [line.participation_ratio, line.effective_rank, line.stable_rank, line.srank()] == pytest.approx([1] * 4, abs=1e-5)


def test_a_normal_layer_has_the_published_kurtosis_and_one_hot_units_the_largest_sparseness() -> None:
    """Kurtosis 3, 1.8 and 6 of the normal, uniform and Laplace distributions; a unit that fires once in n has Treves-Rolls sparseness 1."""
    generator = np.random.default_rng(0)
    drawn = np.stack([generator.normal(size=200_000), generator.uniform(size=200_000), generator.laplace(size=200_000)], 1)
    assert seen(torch.from_numpy(drawn)).kurtosis == pytest.approx([3, 1.8, 6], rel=0.03)
    np.testing.assert_allclose(seen(torch.eye(10)).treves_rolls, 1.0)
    np.testing.assert_allclose(seen(torch.ones(10, 3)).treves_rolls, 0.0, atol=1e-12)


def test_units_that_say_the_same_in_each_are_dormant_as_redo_has_it() -> None:
    """Magnitudes 0.02, 1, 1.98 and 1 have the mean 1; the paper's 0.025 takes the first, 0.0 none."""
    layer = seen(torch.tensor([[0.02, 1.0, -1.98, 1.0]] * 10))
    assert layer.dormant(0.025).tolist() == [True, False, False, False]
    assert not layer.dormant(0.0).any()


@pytest.mark.parametrize(
    ("module", "low", "high"), [(nn.Sigmoid(), 0, 1), (nn.Tanh(), -1, 1), (nn.Hardtanh(-2, 3), -2, 3), (nn.Softsign(), -1, 1)]
)
def test_saturation_of_a_bounded_activation_is_measured_in_its_range(module: nn.Module, low: float, high: float) -> None:
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([0.1, 2.0, 30.0])
    model = nn.Sequential(nn.Identity(), module)
    analysis = hs.analyze(model, list(x.tensor_split(3)), "*")
    y = (module(x).double().numpy() - (low + high) / 2) / ((high - low) / 2)
    for name in ("0", "1"):  # what goes in is read behind the activation
        layer = analysis[name]
        assert layer.saturated is not None
        np.testing.assert_allclose(layer.saturated, (np.abs(y) > 0.95).mean(0), atol=1e-12)
        np.testing.assert_allclose(layer.phi, np.abs(y).mean(0), rtol=1e-6)
        np.testing.assert_allclose(layer.range_use, (y.max(0) - y.min(0)) / 2, rtol=1e-6)


def test_headroom_counts_what_a_format_would_lose() -> None:
    """By hand: 1e-5 is subnormal in float16, 1e-3 in e4m3 besides; 500 is too much for e4m3, 1e5 for all but bfloat16."""
    layer = seen(torch.tensor([[1e-5, 1e-3, 1.0, 500.0, 1e5, 0.0, 1e-39, 1.0, 1.0, 1.0]] * 10))
    wanted = {"float32": (0.1, 0), "bfloat16": (0.1, 0), "float16": (0.2, 0.1), "float8_e4m3": (0.3, 0.2), "float8_e5m2": (0.2, 0.1)}
    for name, shares in wanted.items():
        assert layer.headroom(name) == pytest.approx(shares), name
    with pytest.raises(hs.UsageError, match=r"no format is called 'fp16': .*float16"):
        layer.headroom("fp16")


def test_massive_activations_are_a_hundred_and_a_thousand_medians() -> None:
    x = torch.ones(40, 8) * 0.1
    x[::10, 3] = 500.0
    x[0, 4] = 99.0
    layer = seen(x)
    assert layer.massive.count.tolist() == [0, 0, 0, 4, 0, 0, 0, 0]
    assert (layer.massive.top, round(layer.massive.ratio)) == (500.0, 5000)
    assert seen(x * 10).massive.count.sum() == 4
    assert seen(x * 0.1).massive.count.sum() == 0


@pytest.mark.slow
def test_a_sketch_estimates_the_participation_ratio_of_a_wide_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,500 units of which 40 directions are in use, all alike: 40 within a tenth. A sketch has the memory of 512 units."""
    generator = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(2500, 40, generator=generator))[0]
    x = torch.randn(1500, 40, generator=generator) @ basis.T
    layer = seen(x)
    assert layer.moment is not None
    assert layer.moment.sketched
    assert layer.moment.scatter.shape == (512, 512)
    assert layer.participation_ratio == pytest.approx(40, rel=0.1)
    monkeypatch.setattr(_moment, "EXACT", 4096)
    assert layer.participation_ratio == pytest.approx(seen(x).participation_ratio, rel=0.1)
