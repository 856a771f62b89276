"""A run for other tools: Arrow, pandas, Polars, Parquet, all in the same long form."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from .._core._errors import HookscopeError
from .._core._site import Site
from .._core._stats import COLUMNS
from ._arrays import numbers, texts
from ._columns import Rows, batch_of_rows

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


def to_arrow(rows: Rows, sites: Sequence[Site]) -> pa.Table:
    """One row per step, rank, micro, site and call; `site`, `path` and `kind` are dictionary columns; what is absent is null."""
    batch = batch_of_rows(rows)
    size = max([int(rows.site.max(initial=-1)), *(s.id for s in sites)], default=-1) + 1
    position = np.full(size, -1, np.int32)
    position[[s.id for s in sites]] = np.arange(len(sites), dtype=np.int32)
    at = position[rows.site]
    named: dict[str, list[str]] = {
        "site": [s.name for s in sites],
        "path": [s.full_path for s in sites],
        "kind": [str(s.kind) for s in sites],
    }
    words = {name: _dictionary(at, values) for name, values in named.items()}
    columns = {
        "step": batch["step"],
        "rank": numbers(rows.rank, pa.int32()),
        "micro": batch["micro"],
        **words,
        "site_id": batch["site"],
    }
    return pa.table({**columns, **{name: batch[name] for name in ("call", "seq", *COLUMNS)}})


def _dictionary(at: np.ndarray[Any, np.dtype[np.int32]], values: list[str]) -> pa.Array[Any]:
    distinct = list(dict.fromkeys(values))
    number = {value: i for i, value in enumerate(distinct)}
    codes = np.array([*(number[value] for value in values), -1], np.int32)[at]
    return pa.DictionaryArray.from_arrays(numbers(codes, pa.int32(), codes < 0), texts(distinct))


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """A pandas DataFrame."""
    _need("pandas")
    return table.to_pandas()


def to_polars(table: pa.Table) -> pl.DataFrame:
    """A Polars DataFrame."""
    frame: pl.DataFrame = _need("polars").from_arrow(table)
    return frame


def to_parquet(tables: Iterable[pa.Table], path: str | os.PathLike[str]) -> None:
    """One Parquet file, compressed with zstd, of tables one after the other."""
    import pyarrow.parquet as parquet  # here, because it would double the time to open a run

    with contextlib.ExitStack() as closing:
        writer = None
        for table in tables:
            writer = writer or closing.enter_context(parquet.ParquetWriter(os.fspath(path), table.schema, compression="zstd"))
            writer.write_table(table)


def _need(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError:
        raise HookscopeError(f"this needs {package}, which is not installed: pip install {package}") from None
