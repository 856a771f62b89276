"""Counts by binary exponent, by every backend, against numpy's frexp; what is derived from them, against sorting."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookscope._core._errors import UsageError
from hookscope._core._exponents import BINS, FORMATS, INF, NAN, SLOTS, ZEROS, Exponents
from hookscope._core._stats import Stats
from hookscope._stats import Cells, _exponents, count_into, histogram_of
from hookscope._stats._backend import KERNEL

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
BITS = {torch.float32: np.int32, torch.float64: np.int64, torch.float16: np.int16, torch.bfloat16: np.int16}
one_backend_a_test = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=["native", "torch"])
def _backend(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(_exponents, "_CODES", {})
    elif KERNEL is None:
        pytest.skip("no kernel was built, or it was switched off")


def by_definition(values: list[float]) -> list[int]:
    """[282], one element at a time, by Python's own frexp."""
    counts = [0] * SLOTS
    for v in values:
        if math.isnan(v) or math.isinf(v) or v == 0:
            counts[NAN if math.isnan(v) else INF if v else ZEROS] += 1
        else:
            counts[min(max(math.frexp(v)[1] - 1 + 150, 0), BINS - 1)] += 1
    return counts


@st.composite
def any_bits(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(FLOATS))
    kind = np.dtype(BITS[dtype])
    patterns = draw(st.binary(max_size=40 * kind.itemsize).map(lambda b: b[: len(b) // kind.itemsize * kind.itemsize]))
    return torch.from_numpy(np.frombuffer(patterns, kind).copy()).view(dtype).repeat(draw(st.sampled_from([1, 3, 70])))


magnitudes = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=30)


@pytest.mark.usefixtures("_backend")
@one_backend_a_test
@given(tensor=any_bits())
def test_any_bit_pattern_is_in_the_bin_of_its_frexp(tensor):
    assert histogram_of(tensor).counts.tolist() == by_definition(tensor.double().tolist())


@pytest.mark.usefixtures("_backend")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_half_precision_number_is_in_its_bin(dtype):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    assert histogram_of(every).counts.tolist() == by_definition(every.double().tolist())


@pytest.mark.usefixtures("_backend")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_exponent_is_in_its_bin_at_both_ends(dtype):
    lowest = torch.tensor([math.ldexp(1.0, k) for k in range(-1074, 1024)], dtype=torch.float64)
    whole = torch.cat([lowest, lowest.nextafter(torch.zeros(())), -lowest, torch.zeros(5), torch.full((3,), math.nan)]).to(dtype)
    assert histogram_of(whole).counts.tolist() == by_definition(whole.double().tolist())


@pytest.mark.usefixtures("_backend")
@one_backend_a_test
@given(tensor=any_bits(), data=st.data())
def test_the_counts_of_any_split_merge_to_those_of_the_whole(tensor, data):
    cut = data.draw(st.integers(0, len(tensor)))
    merged = histogram_of(tensor[:cut]).merge(histogram_of(tensor[cut:]))
    assert merged.counts.tolist() == histogram_of(tensor).counts.tolist()
    assert merged.count == len(tensor)


@pytest.mark.usefixtures("_backend")
@pytest.mark.parametrize("n", [0, 1, 3, 5, 2047, 2049, 70_001])
def test_every_length_and_layout_is_counted_once(n):
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(n))
    x[::3] = 0
    for tensor in (x, x.T, x[:, 0], torch.ones(()).expand(n, 2), x.half(), x.double().T, (x * 9).int()):
        assert histogram_of(tensor).counts.tolist() == Exponents.of_magnitudes(tensor.double().numpy()).counts.tolist()


@pytest.mark.usefixtures("_backend")
def test_the_zeros_that_a_sparse_tensor_does_not_store_count():
    assert histogram_of(torch.tensor([0.0, 0.0, 3.0, 0.0]).to_sparse()).zeros == 3


@pytest.mark.usefixtures("_backend")
def test_flushing_subnormals_changes_no_count():
    tensor = torch.cat([torch.full((100,), 1e-40), torch.full((3,), 1e-45)])
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        counts = histogram_of(tensor).counts
    finally:
        torch.set_flush_denormal(False)
    assert counts[150 - 133] == 100  # 2**-133 <= 1e-40 < 2**-132
    assert counts[150 - 149] == 3
    assert counts.sum() == 103


@pytest.mark.skipif(KERNEL is None, reason="no kernel was built, or it was switched off")
def test_the_stats_written_on_the_way_are_those_of_the_kernel_alone():
    cells, counts = Cells("cpu"), torch.zeros(SLOTS, dtype=torch.int64)
    row, alone = cells.row(), cells.row()
    x = torch.randn(50_001)
    x[::7], x[3] = -math.inf, math.nan
    KERNEL.exponents(x.data_ptr(), len(x), 0, counts.data_ptr(), row.pointer, 3)
    KERNEL.reduce(x.data_ptr(), len(x), 0, alone.pointer, 3)
    got, want = (Stats(*r.tolist()) for r in cells.read([row, alone]))
    assert got == want
    assert counts.sum() == 150_003


def test_what_has_no_numbers_adds_nothing_and_is_refused_by_name():
    counts = torch.zeros(SLOTS, dtype=torch.int64)
    assert not count_into(counts, torch.ones(3, device="meta"))
    assert not counts.any()
    with pytest.raises(UsageError, match="Tensor on meta has no numbers to read"):
        histogram_of(torch.ones(3, device="meta"))


@given(values=magnitudes, k=st.integers(-149, 128))
def test_shares_at_a_power_of_two_are_exact(values, k):
    e, x = Exponents.of_magnitudes(np.array(values)), math.ldexp(1.0, k)
    sizes = [abs(v) for v in values if math.isfinite(v) and v]
    below = sum(s < x for s in sizes) / len(sizes) if sizes else math.nan
    np.testing.assert_equal(e.share_below(x), below)
    np.testing.assert_allclose(e.share_above(x), 1 - below, atol=1e-15)


@given(values=magnitudes, x=st.floats(min_value=0, allow_infinity=True))
def test_shares_anywhere_are_never_too_large(values, x):
    e, sizes = Exponents.of_magnitudes(np.array(values)), [abs(v) for v in values if math.isfinite(v) and v]
    if sizes:
        assert 0 <= e.share_below(x) <= sum(s < x for s in sizes) / len(sizes)
        assert 0 <= e.share_above(x) <= sum(s >= x for s in sizes) / len(sizes)


@given(values=magnitudes, q=st.floats(0, 1))
def test_a_quantile_lies_within_its_bounds(values, q):
    low, high = Exponents.of_magnitudes(np.array(values)).quantile(q)
    sizes = np.abs([v for v in values if not math.isnan(v)])
    if not len(sizes):
        assert math.isnan(low)
        return
    wanted = np.sort(sizes)[max(math.ceil(q * len(sizes)), 1) - 1]
    assert low <= wanted <= high
    assert wanted < high or wanted in (0, math.inf)
    assert high == 2 * low or low == 0 or low >= 2.0**128


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float16", torch.float16),
        ("bfloat16", torch.bfloat16),
        ("float8_e5m2", torch.float8_e5m2),
        ("float8_e4m3", torch.float8_e4m3fn),
    ],
)
def test_the_ranges_of_formats_are_those_of_torch(name, dtype):
    info, ours = torch.finfo(dtype), FORMATS[name]
    assert (ours.normal, ours.tiny) == (info.tiny, info.smallest_normal * info.eps)
    assert ours.beyond / 2 <= info.max < ours.beyond
    x = torch.tensor([math.ldexp(1.25, k) for k in range(-149, 127)])
    e = histogram_of(x)
    assert e.underflow(name) == (x.to(dtype).float() == 0).sum().item() / len(x)
    assert e.overflow(name) == pytest.approx((x.double() >= ours.beyond).sum().item() / len(x))


def test_a_format_or_a_quantile_that_is_none_is_refused():
    with pytest.raises(UsageError, match="'float12' is no format whose range is known: choose one of float16, bfloat16"):
        histogram_of(torch.ones(1)).underflow("float12")
    with pytest.raises(UsageError, match="q=95: a quantile is from 0 to 1"):
        histogram_of(torch.ones(1)).quantile(95)
