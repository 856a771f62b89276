"""The header of a safetensors file: done here, since the values are in types that numpy lacks, and are to be mapped."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._core._errors import FeaturesError
from ._dtypes import stored

_NAMES = {
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "bool": "BOOL", "complex64": "C64",
    "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip


def safetensors_header(tensors: Mapping[str, tuple[tuple[int, ...], str]], about: str, room: int = 0) -> bytes:
    """The bytes before the values of tensors of these shapes and types of torch, at least `room`; values follow in the same order."""
    named: dict[str, Any] = {"__metadata__": {"site": about}}
    start = 0
    for name, (shape, dtype) in tensors.items():
        if dtype not in _NAMES:
            raise FeaturesError(f"safetensors has no type {dtype}: choose storage='npy', or another dtype")
        end = start + math.prod(shape) * stored(dtype).itemsize
        named[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(named, separators=(",", ":")).encode()
    text = text.ljust(room - 8) + b" " * (-len(text.ljust(room - 8)) % 8)
    return struct.pack("<Q", len(text)) + text


def safetensors_room(dtype: str, shape: tuple[int, ...], about: str) -> int:
    """Bytes enough for the header of any number of samples of that shape, with their offsets if they turn out to differ in length."""
    most = {"values": ((10**12, *shape), dtype), "offsets": ((10**12,), "int64")}
    return -(-len(safetensors_header(most, about)) // 64) * 64


def read_safetensors_header(path: Path) -> tuple[dict[str, Any], int]:
    """What the header says, and where in the file the values begin."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length)), 8 + length
