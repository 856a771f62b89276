"""A run in other tools: the long form in Arrow, pandas, Polars, Parquet and DuckDB."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from hookscope._core._errors import HookscopeError
from hookscope._record import MemoryWriter, Run

from ._frames import SITES, frame, plain_frame, stats_of


@pytest.fixture
def run() -> Run:
    sink = MemoryWriter()
    sink.sites(SITES)
    sink.frame(plain_frame(0))
    sink.frame(frame(1, [(0, 99, 0, 0, (1.0, 1.0, 0.0, 0.0, 0.0, 0.0, float("inf"), float("-inf")))]))  # no such site
    return sink.run


def test_the_long_form_spells_out_the_sites(run: Run) -> None:
    table = run.arrow()
    expected = ["step", "rank", "micro", "site", "path", "kind", "site_id", "call", "seq"]
    assert table.schema.names == [*expected, "count", "nan", "inf", "zeros", "sum", "sumsq", "min", "max"]
    assert table["site"].to_pylist() == ["fc.weight:param", "fc.weight:update", "fc:output", "loss", "fc:output", "loss", None]
    assert table["path"].to_pylist() == ["fc.weight", "fc.weight", "fc", "loss", "fc", "loss", None]
    assert table["kind"].to_pylist() == ["param", "update", "output", "loss", "output", "loss", None]
    assert table["micro"].to_pylist() == [None, None, 0, 0, 1, 1, 0]
    assert table["seq"].to_pylist() == [None, None, 0, 1, 0, 1, 0]
    assert table["max"].to_pylist() == [4.0, 0.4, 1.0, 0.5, 3.0, 1.5, None]
    assert table["count"].type == pa.int64()
    assert all(pa.types.is_dictionary(table.schema.field(name).type) for name in ("site", "path", "kind"))


def test_pandas_polars_and_parquet_hold_the_same(run: Run, tmp_path: Path) -> None:
    rows = run.arrow().to_pylist()
    assert run.polars().to_dicts() == rows
    assert run.pandas()["sum"].tolist() == [row["sum"] for row in rows]
    assert run.pandas()["site"].astype(object).tolist()[:2] == ["fc.weight:param", "fc.weight:update"]
    run.to_parquet(tmp_path / "run.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "run.parquet").to_pylist() == rows


def test_duckdb_asks_the_arrow_table_and_the_parquet_file_in_one_line(run: Run, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    frames = run.arrow()
    query = "select site, sqrt(sum(sumsq) / sum(count)) as rms from {} where kind = 'param' group by site"
    assert duckdb.sql(query.format("frames")).fetchall() == [("fc.weight:param", pytest.approx(12.5**0.5))]
    assert frames.num_rows == 7
    run.to_parquet(tmp_path / "run.parquet")
    assert duckdb.sql(query.format(f"'{tmp_path / 'run.parquet'}'")).fetchall() == [("fc.weight:param", pytest.approx(12.5**0.5))]


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_missing_package_is_named_with_the_line_that_installs_it(run: Run, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(HookscopeError, match=f"^this needs {package}, which is not installed: pip install {package}$"):
        getattr(run, package)()


def test_a_row_of_stats_by_hand_is_what_the_table_shows(run: Run) -> None:
    row = run.arrow().to_pylist()[4]  # the second micro-batch of fc: 0 and 3
    assert tuple(row[name] for name in ("count", "nan", "inf", "zeros", "sum", "sumsq", "min", "max")) == stats_of(0.0, 3.0)
    assert stats_of(0.0, 3.0) == (2, 0.0, 0.0, 1, 3.0, 9.0, 0.0, 3.0)
