"""One file of some samples of one site: safetensors, or Parquet with the ids beside the values."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from .._core._errors import FeaturesError
from ._batch import Ids
from ._columns import values_of_column
from ._dtypes import Array, Dtype, stored
from ._entry import Entry
from ._safetensors import read_safetensors_header

ENDINGS = {"safetensors": ".safetensors", "parquet": ".parquet"}


@dataclass(frozen=True, slots=True)
class Shard:
    """`values` are samples, or with `offsets` the steps of sequences laid end to end."""

    values: Array
    offsets: Array | None
    ids: Ids


def shard_paths(folder: Path, stem: str, storage: str) -> list[Path]:
    """The shards of a site, in order, up to the first that is missing."""
    paths: list[Path] = []
    while (path := shard_path(folder, stem, len(paths), storage)).exists():
        paths.append(path)
    return paths


def shard_path(folder: Path, stem: str, number: int, storage: str) -> Path:
    """Where the shard of that number lies, counted from 0."""
    return folder / stem / f"{number:06d}{ENDINGS[storage]}"


def read_shard(path: Path, entry: Entry, mode: Literal["r", "c"] = "r") -> Shard:
    """Values and offsets of a shard, mapped where the format allows; without ids."""
    try:
        if path.suffix == ENDINGS["parquet"]:
            return _read_parquet(path, entry)
        return _read_safetensors(path, entry, mode)
    except FeaturesError:
        raise
    except (OSError, ValueError, KeyError, struct.error) as problem:
        raise FeaturesError(f"cannot read {path}: {problem}") from problem


def count_samples(path: Path) -> int:
    """How many samples a shard holds, from its header or footer alone."""
    if path.suffix == ENDINGS["parquet"]:
        import pyarrow.parquet as parquet

        return int(parquet.read_metadata(path).num_rows)
    header, _ = read_safetensors_header(path)
    return int(header["offsets"]["shape"][0]) - 1 if "offsets" in header else int(header["values"]["shape"][0])


def _read_parquet(path: Path, entry: Entry) -> Shard:
    import pyarrow.parquet as parquet

    table = parquet.read_table(path, columns=["values"])
    shape = json.loads(table.schema.metadata[b"hookscope"])["shape"]
    values, offsets = values_of_column(table["values"].combine_chunks(), tuple(shape), stored(entry.dtype))
    return Shard(values, offsets, [])


def _read_safetensors(path: Path, entry: Entry, mode: Literal["r", "c"]) -> Shard:
    header, start = read_safetensors_header(path)

    def mapped(name: str, dtype: Dtype) -> Array:
        found = header[name]
        shape = tuple(found["shape"])
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.memmap(path, dtype, mode, start + found["data_offsets"][0], shape)

    return Shard(mapped("values", stored(entry.dtype)), mapped("offsets", np.dtype("<i8")) if "offsets" in header else None, [])
