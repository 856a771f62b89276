"""Tensors of one form are added without being asked again; any other is left to who asks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hookscope._stats import _units
from hookscope._stats._units import Units


@pytest.mark.skipif(_units.UNIT_KERNEL is None, reason="the kernel was not built")
def test_a_form_takes_tensors_like_the_one_it_is_of_and_no_others() -> None:
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    units = Units(4, x.device)
    units.add(x, 1)
    form = units.form_of(x, 1)
    assert form is not None
    other = torch.randn(3, 4, 5)
    assert units.add_like(other, form) == other.abs().max()
    assert_sums(units, torch.cat([x, other]))
    negated = torch.randn(3, 4, 5, dtype=torch.complex64).conj().imag
    unlike = (x.double(), x[:2], x.transpose(1, 2).contiguous().transpose(1, 2), torch.nn.Parameter(x), x.to("meta"), negated, None, (x,))
    assert [units.add_like(one, form) for one in unlike] == [None] * 8  # type: ignore[arg-type]  # anything may come
    torch.func.vmap(lambda one: one if units.add_like(one, form) is None else 1 / 0)(torch.stack([x, x]))
    assert_sums(units, torch.cat([x, other]))
    assert [units.form_of(one, 1) for one in (x.double(), x[:, :, ::2], negated)] == [None] * 3


def assert_sums(units: Units, x: torch.Tensor) -> None:
    stats, rows = units.stats(), x.double().movedim(1, 0).flatten(1).numpy()
    assert (stats.n == rows.shape[1]).all()
    np.testing.assert_allclose(stats.mean, rows.mean(1), rtol=1e-9)
    np.testing.assert_allclose(stats.m2, rows.var(1) * rows.shape[1], rtol=1e-9)
    np.testing.assert_array_equal(stats.max, rows.max(1))
