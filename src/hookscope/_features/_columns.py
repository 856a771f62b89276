"""Samples as a column of Arrow: lists of one fixed size, or lists of steps for sequences that differ in length."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa

from .._core._errors import FeaturesError
from ._dtypes import Array, Dtype


def column(values: Array, offsets: Array | None = None) -> pa.Array[Any]:
    """Each sample as a flat list in row-major order; without offsets nothing is copied where `values` are contiguous."""
    if values.dtype.kind == "c":
        raise FeaturesError(f"Arrow and Parquet have no type {values.dtype}: choose storage='npy' or 'safetensors', or store real numbers")
    size = int(np.prod(values.shape[1:], dtype=np.int64))
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    arrays: Any = pa.FixedSizeListArray  # its stub knows no `type` of ours
    steps = flat if values.ndim == 1 else arrays.from_arrays(flat, type=pa.list_(_never_null(flat.type), size))
    if offsets is None:
        return cast("pa.Array[Any]", steps)
    return pa.LargeListArray.from_arrays(pa.array(np.asarray(offsets)), steps, type=pa.large_list(_never_null(steps.type)))


def _never_null(kind: pa.DataType) -> pa.Field[Any]:
    """Said, it spares Parquet a third of the work."""
    return pa.field("item", kind, nullable=False)


def values_of_column(found: Any, shape: tuple[int, ...], dtype: Dtype) -> tuple[Array, Array | None]:
    """The values and offsets that such a column was made of."""
    offsets = None
    if isinstance(found, pa.LargeListArray):
        offsets = found.offsets.to_numpy()
        found = found.flatten()
        offsets = offsets - offsets[0]
    flat = found.flatten() if isinstance(found, pa.FixedSizeListArray) else found
    values: Any = flat.to_numpy(zero_copy_only=False)  # only booleans, which Arrow packs, are copied
    return values.view(dtype).reshape(-1, *shape), offsets
