"""Arrow arrays built from their buffers: `pa.array` imports pandas wherever it is installed, half a second in the middle of a training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def numbers(values: NDArray[Any], kind: pa.DataType, absent: NDArray[np.bool_] | None = None) -> pa.Array[Any]:
    """A column of numbers, null where `absent`; the values are shared, not copied, if they lie together in memory."""
    data = np.ascontiguousarray(values, dtype=kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(data), [_validity(absent), pa.py_buffer(data.data)])


def optional_numbers(values: Sequence[float | None], kind: pa.DataType) -> pa.Array[Any]:
    """A column of numbers or truth values, null where None."""
    absent = np.array([value is None for value in values], bool)
    given = np.array([0 if value is None else value for value in values], kind.to_pandas_dtype())
    if kind != pa.bool_():
        return numbers(given, kind, absent)
    return pa.Array.from_buffers(kind, len(given), [_validity(absent), pa.py_buffer(_bits(given).data)])


def texts(values: Sequence[str]) -> pa.Array[Any]:
    """A column of strings."""
    encoded = [value.encode() for value in values]
    buffers = [None, pa.py_buffer(_offsets(encoded).data), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def lists(values: Sequence[Sequence[Any] | None], kind: pa.ListType[Any]) -> pa.Array[Any]:
    """A column of lists of strings or of numbers, null where None."""
    absent = np.array([value is None for value in values], bool)
    flat = [item for value in values for item in value or ()]
    items = texts(flat) if kind.value_type == pa.string() else optional_numbers(flat, kind.value_type)
    offsets = pa.py_buffer(_offsets([value or () for value in values]).data)
    return pa.Array.from_buffers(kind, len(values), [_validity(absent), offsets], children=[items])


def _validity(absent: NDArray[np.bool_] | None) -> pa.Buffer | None:
    return pa.py_buffer(_bits(~absent).data) if absent is not None and absent.any() else None


def _bits(truths: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.packbits(truths, bitorder="little")


def _offsets(parts: Sequence[Sequence[Any]]) -> NDArray[np.int32]:
    return np.cumsum([0, *map(len, parts)], dtype=np.int32)
