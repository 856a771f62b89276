"""The table of sites as an Arrow file, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from .._core._errors import RunUnreadableError, UsageError
from .._core._site import Site
from ._arrays import lists, optional_numbers, texts

_TEXTS = pa.list_(pa.string())
_TYPES: dict[str, pa.DataType] = {
    "id": pa.int32(),
    **dict.fromkeys(("name", "module_class"), pa.string()),  # what a Site derives: for readers without hookscope
    **dict.fromkeys(("path", "kind", "label", "output_path", "model", "module", "dtype", "device", "part"), pa.string()),
    **dict.fromkeys(("bases", "aliases"), _TEXTS),
    "shape": pa.list_(pa.int64()),
    "trainable": pa.bool_(),
    **dict.fromkeys(("numel", "sampled", "held"), pa.int64()),
}
_SCHEMA = pa.schema(list(_TYPES.items()))
_FIELDS = tuple(f.name for f in fields(Site))
_TUPLES = ("bases", "shape", "aliases")
_ABSENT = {"part": "", "held": None}  # what tables that do not have a column yet mean by that


def encode_sites(sites: Sequence[Site]) -> bytes:
    """The bytes of sites.arrow."""
    shown = plain_names(sites)
    arrays = [_column([getattr(s, f.name) for s in (shown if f.name == "name" else sites)], f.type) for f in _SCHEMA]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _SCHEMA) as file:
        file.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _column(values: list[Any], kind: pa.DataType) -> pa.Array[Any]:
    if isinstance(kind, pa.ListType):
        return lists(values, kind)
    return texts(values) if kind == pa.string() else optional_numbers(values, kind)


def read_sites(path: Path) -> tuple[Site, ...]:
    """The sites of a run; none if it has no table yet."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    return decode_sites(data, str(path))


def decode_sites(data: bytes, where: str) -> tuple[Site, ...]:
    """The sites in the bytes of sites.arrow."""
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        columns = [table.column(name).to_pylist() if name in table.column_names else [_ABSENT[name]] * len(table) for name in _FIELDS]
    except (pa.ArrowException, KeyError) as problem:
        raise RunUnreadableError(f"{where} is not a table of sites: {problem}") from problem
    for i, name in enumerate(_FIELDS):
        if name in _TUPLES:
            columns[i] = [None if value is None else tuple(value) for value in columns[i]]
    return tuple(Site(*row) for row in zip(*columns, strict=True))


def plain_names(sites: Sequence[Site]) -> tuple[Site, ...]:
    """The sites, without the model's name where there is but one model: then names are the paths that its user knows."""
    if len({s.model for s in sites if s.kind not in ("loss", "scalar")}) > 1:
        return tuple(sites)
    return tuple(replace(s, model="") if s.model else s for s in sites)


def grown(known: Sequence[Site], table: Sequence[Site]) -> tuple[Site, ...]:
    """The new table, with what only the known one has: rows already on disk keep their meaning."""
    merged = {s.id: s for s in known}
    for site in table:
        before = merged.get(site.id)
        if before is not None and before.name != site.name:
            raise UsageError(
                f"site {site.id} of this run is {before.name!r} and cannot become {site.name!r}: "
                f"give new sites ids from {max(merged) + 1} on, and resume with the ids of `known_sites`"
            )
        merged[site.id] = site
    return tuple(merged[i] for i in sorted(merged))
