"""Features for other tools: a table of Arrow, and one Parquet file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ._columns import column
from ._dtypes import Array
from ._feature import Feature

_STRETCH = 1 << 26  # bytes that are in memory at a time


def to_arrow(ids: Array, features: Mapping[str, Feature], samples: slice = slice(None)) -> pa.Table:
    """`id`, and for each feature a column of lists in row-major order."""
    columns: dict[str, pa.Array[Any]] = {"id": pa.array(ids[samples])}
    for name, feature in features.items():
        found = feature[samples]
        if isinstance(found, list):
            lengths = np.array([0, *map(len, found)], np.int64)
            inner: Any = feature.shape[2:]
            columns[name] = column(np.concatenate([np.empty((0, *inner), feature.dtype), *found]), np.cumsum(lengths))
        else:
            columns[name] = column(found)
    return pa.table(columns)


def to_parquet(ids: Array, features: Mapping[str, Feature], path: str | os.PathLike[str]) -> None:
    """One Parquet file, compressed with zstd, written a row group at a time."""
    import pyarrow.parquet as parquet

    per_sample = sum(feature.nbytes for feature in features.values()) / max(len(ids), 1)
    step = max(1, int(_STRETCH / max(per_sample, 1)))
    schema = to_arrow(ids, features, slice(0, 1)).schema
    with parquet.ParquetWriter(os.fspath(path), schema, compression="zstd") as writer:
        for start in range(0, len(ids), step):
            writer.write_table(to_arrow(ids, features, slice(start, start + step)))
