"""The header of a safetensors file: done here, since the values are in types that numpy lacks, and are to be mapped."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._core._errors import FeaturesError
from ._dtypes import Array

_NAMES = {
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "bool": "BOOL", "complex64": "C64",
    "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip


def safetensors_header(tensors: Mapping[str, tuple[Array, str]], about: str) -> bytes:
    """The bytes before the values of these tensors, each with the name of its type in torch; the values follow in the same order."""
    named: dict[str, Any] = {"__metadata__": {"site": about}}
    start = 0
    for name, (values, dtype) in tensors.items():
        if dtype not in _NAMES:
            raise FeaturesError(f"safetensors has no type {dtype}: choose storage='npy', or another dtype")
        named[name] = {"dtype": _NAMES[dtype], "shape": list(values.shape), "data_offsets": [start, start + values.nbytes]}
        start += values.nbytes
    text = json.dumps(named, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def read_safetensors_header(path: Path) -> tuple[dict[str, Any], int]:
    """What the header says, and where in the file the values begin."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length)), 8 + length
