"""A run of ranks that is read a column and a batch at a time says what the same run says when it is read into memory."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow.parquet as parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hookscope as hs
from hookscope._core._frame import Frame
from hookscope._core._site import Site
from hookscope._record import Meta, RunWriter, _scan, _source, _stored

pytestmark = pytest.mark.slow

OUTPUT, INPUT, LOSS = Site(0, "fc", "output"), Site(1, "", "input"), Site(2, "loss", "loss")
WEIGHT = Site(3, "fc.weight", "param", module="fc", shape=(4, 2), numel=8)
LOCAL = Site(4, "fc.weight", "param_grad", label="local", module="fc", shape=(4, 2), numel=8)
PART = Site(5, "fc.bias", "update", module="fc", shape=(8,), numel=8)
QUANTITIES = ("count", "mean", "std", "rms", "l2", "min", "max", "zeros", "nonfinite")
ORDERS = ((0, 1, 2, 3, 4, 5), (5, 3, 0, 1, 2, 4))


def row(values: np.ndarray) -> list[float]:
    finite, numbers = values[np.isfinite(values)], values[~np.isnan(values)]
    low, high = (numbers.min(), numbers.max()) if numbers.size else (np.inf, -np.inf)
    counts = values.size, np.isnan(values).sum(), np.isinf(values).sum(), (values == 0).sum()
    return [*counts, finite.sum(), (finite**2).sum(), low, high]


@contextmanager
def by_column() -> Iterator[None]:
    with mock.patch.object(_source, "LARGE", 0):
        yield


def write(to: Path, seed: int, ranks: int) -> None:
    """Ranks that number their sites in different ways, leave steps out, repeat samples, and differ in what they should share."""
    rng = np.random.default_rng(seed)
    cut, calls, grouped, even = bool(rng.integers(2)), int(rng.integers(1, 3)), bool(rng.integers(2)), bool(rng.integers(2))
    for rank in range(ranks):
        order = ORDERS[0 if even else int(rng.integers(2))]
        held = replace(PART, part=f"0:{rank % 2}/2", held=4, sampled=2) if cut else PART
        number = {site: place for place, site in enumerate(order)}
        writer = RunWriter(to, Meta(rank=rank, world_size=ranks))
        table = [replace(site, id=number[site.id]) for site in (OUTPUT, INPUT, LOSS, WEIGHT, LOCAL, held)]
        writer.sites(sorted(table, key=lambda site: site.id))
        if grouped and rank < 2:
            writer.event({"event": "same_samples", "ranks": [0, 1]})
        for step in range(6):
            if not even and rng.random() < 0.2:
                continue
            common = np.random.default_rng(step).normal(size=8) + (0.5 if rng.random() < 0.2 else 0.0)
            same = grouped and rank < 2 and step % 2
            own = (np.random.default_rng(1000 * step + 7) if same else rng).normal(size=4)
            if not same and rng.random() < 0.1:
                own = own * np.nan
            rows = [(0, call, 0, own + call) for call in range(calls)] + [(1, 0, 0, own * 2), (3, 0, -1, common), (4, 0, -1, own)]
            rows += [(2, 0, micro, own[:1]) for micro in range(2)] + [(5, 0, -1, common[: 2 if cut else 8 - 2 * int(rng.integers(2))])]
            site = np.array([number[r[0]] for r in rows], np.int32)
            call, micro = (np.array([r[i] for r in rows], np.int32) for i in (1, 2))
            seq = np.where(micro < 0, -1, np.arange(len(rows))).astype(np.int32)
            writer.frame(Frame(step, micro, site, call, seq, np.array([row(r[3]) for r in rows])))
            if not even and rng.random() < 0.5:
                writer.flush()
        writer.close("finished")


def same_series(a: hs.Series, b: hs.Series) -> None:
    assert a.steps.tolist() == b.steps.tolist()
    np.testing.assert_allclose(a.values, b.values, rtol=1e-9, atol=1e-12)


def check_numbers(held: hs.Run, stored: hs.Run) -> None:
    for site in held.sites:
        for quantity in QUANTITIES:
            same_series(held[site, quantity], stored[site, quantity])
        one, other = held.per_rank(site, "rms"), stored.per_rank(site, "rms")
        assert (one.steps.tolist(), one.ranks.tolist()) == (other.steps.tolist(), other.ranks.tolist())
        np.testing.assert_array_equal(one.values, other.values)


def check_rows(held: hs.Run, stored: hs.Run, ranks: int) -> None:
    assert (held.steps.tolist(), held.ranks) == (stored.steps.tolist(), stored.ranks)
    assert held.uneven_steps.tolist() == stored.uneven_steps.tolist()
    for name in ("step", "site", "rank", "stats"):
        assert getattr(held.rows(1, 3), name).tolist() == getattr(stored.rows(1, 3), name).tolist()
    assert held.rank(ranks - 1)["loss"].values.tolist() == pytest.approx(stored.rank(ranks - 1)["loss"].values.tolist(), nan_ok=True)


def check_ranks(held: hs.Run, stored: hs.Run) -> None:
    for site in held.sites.select("fc.weight:param"):
        a, b = (np.column_stack([s.steps, s.ranks, s.low, s.high]) for s in (run.table.spread(site) for run in (held, stored)))
        np.testing.assert_array_equal(a, b)
    own = held.sites.select("fc.weight:param_grad/local")
    np.testing.assert_allclose(held.table.squares(own), stored.table.squares(own), rtol=1e-12)
    assert held.table.presence(list(held.sites)).tolist() == stored.table.presence(list(held.sites)).tolist()
    assert ill(held) == ill(stored)


def ill(run: hs.Run) -> set[tuple[int, int]]:
    """Steps and sites at which some rank has a number that is none."""
    rows = run.table.overview(None, None)
    which = (rows.stats[:, 1:3] > 0).any(axis=1)
    return set(zip(rows.step[which].tolist(), rows.site[which].tolist(), strict=True))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5))
@example(65535, 3)  # rows of a new site after those in which ranks were unlike
def test_both_ways_of_reading_say_the_same(seed: int, ranks: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), seed, ranks)
        held = hs.Run(folder)
        with by_column():
            single, passed = hs.Run(folder), hs.Run(folder)
        passed.counted()
        for stored in (single, passed):
            check_numbers(held, stored)
            check_rows(held, stored, ranks)
        check_ranks(held, passed)


def test_a_series_reads_what_it_is_made_of(tmp_path: Path) -> None:
    write(tmp_path, 3, 3)
    asked: list[tuple[str, ...]] = []

    def scan(extents: object, names: tuple[str, ...]) -> object:
        asked.append(tuple(names))
        return _scan.scan(extents, names)  # type: ignore[arg-type]

    with by_column(), mock.patch.object(_stored, "scan", scan):
        run = hs.Run(tmp_path)
        assert asked == []
        run["fc:output", "rms"]
    assert asked == [("step", "micro", "site", "call", "count", "nan", "inf", "sumsq")]


def test_a_torn_end_is_passed_over_and_counted(tmp_path: Path) -> None:
    write(tmp_path, 5, 2)
    segment = max((tmp_path / "frames" / "rank-00001").glob("*.arrows"))
    segment.write_bytes(segment.read_bytes()[:-40])
    held = hs.Run(tmp_path)
    with by_column():
        stored = hs.Run(tmp_path)
    assert stored.steps.tolist() == held.steps.tolist()
    assert stored["fc:output", "count"].values.tolist() == held["fc:output", "count"].values.tolist()
    assert stored.unread_bytes == held.unread_bytes > 0


def test_what_is_added_later_is_read_later(tmp_path: Path) -> None:
    writers = [RunWriter(tmp_path, Meta(rank=rank, world_size=2)) for rank in range(2)]
    at = np.zeros(1, np.int32)

    def frame(step: int) -> None:
        for writer in writers:
            writer.frame(Frame(step, at, at, at, at, np.array([row(np.ones(3))])))
            writer.flush()

    for writer in writers:
        writer.sites([OUTPUT])
    frame(0)
    with by_column():
        run = hs.Run(tmp_path)
        assert run["fc:output", "sum"].values.tolist() == [6.0]
        assert not run.refresh()
        frame(1)
        assert run["fc:output"].steps.tolist() == [0]
        assert run.refresh()
        assert run["fc:output"].steps.tolist() == [0, 1]
    for writer in writers:
        writer.close("finished")


def test_more_rows_than_memory_holds_are_refused_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 1, 2)
    monkeypatch.setattr(_stored, "MOST_ROWS", 10)
    with by_column():
        run = hs.Run(tmp_path)
        with pytest.raises(hs.HookscopeError, match=r"more than 10, .* run\.to_parquet"):
            run.arrow()
        run.to_parquet(tmp_path / "all.parquet")
    assert parquet.read_table(tmp_path / "all.parquet").num_rows == len(hs.Run(tmp_path).rows())


def test_reading_that_is_broken_off_leaves_no_thread(tmp_path: Path) -> None:
    write(tmp_path, 2, 2)
    with by_column():
        run = hs.Run(tmp_path)
    reading = _scan.scan(run.table.extents, ("step",))  # type: ignore[attr-defined]
    next(reading)
    reading.close()
    assert [t for t in threading.enumerate() if t.name.startswith("hookscope-reader")] == []


def test_one_step_is_read_once_whatever_the_sites_asked_of_it(tmp_path: Path) -> None:
    write(tmp_path, seed=4, ranks=3)
    with by_column():
        table = hs.Run(tmp_path).table
    expected = {site: hs.Run(tmp_path).table.rows_of(site, 2, 2) for site in hs.Run(tmp_path).sites}
    assert table.squares([]) is not None  # the one pass
    with mock.patch.object(_stored, "scan", wraps=_stored.scan) as scans:
        for site, rows in expected.items():
            found = table.rows_of(site, 2, 2)
            assert (found.rank.tolist(), found.stats.tolist()) == (rows.rank.tolist(), rows.stats.tolist())
    assert scans.call_count == 1
    with mock.patch.object(_stored, "KEPT_ROWS", 5):  # a step that is too large to be kept
        found = [table.rows_of(site, 3, 3) for site in expected]
    assert [len(rows) for rows in found] == [len(hs.Run(tmp_path).table.rows_of(site, 3, 3)) for site in expected]
