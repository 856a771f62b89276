"""How the types of torch are kept by numpy, which has neither bfloat16 nor the eight-bit floats."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from .._core._errors import FeaturesError

Array: TypeAlias = "np.ndarray[Any, Any]"
Dtype: TypeAlias = "np.dtype[Any]"

_SAME = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
_COMPLEX = ("complex64", "complex128")
_BITS = {
    "bfloat16": "uint16",
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), "uint8"),
}


def stored(name: str) -> Dtype:
    """The numpy type of the bytes on disk, little-endian: unsigned whole numbers of the same width where numpy lacks the type.

    >>> stored("float16"), stored("bfloat16")
    (dtype('float16'), dtype('uint16'))
    """
    if name not in (*_SAME, *_COMPLEX, *_BITS):
        raise FeaturesError(f"values of type {name} cannot be stored: choose dtype=torch.float32, float16 or bfloat16")
    kind: Dtype = np.dtype("<" + np.dtype(_BITS.get(name, name)).str[1:])
    return kind


def shown(name: str) -> Dtype:
    """The numpy type that a reader is given: float32, which holds every bfloat16 exactly, for bfloat16."""
    return np.dtype("<f4") if name == "bfloat16" else stored(name)


def widened(raw: Array, name: str) -> Array:
    """What was stored, in the type that is shown; a copy for bfloat16 alone.

    >>> widened(np.array([0x3F80, 0xC000], np.uint16), "bfloat16")
    array([ 1., -2.], dtype=float32)
    """
    if name != "bfloat16":
        return raw
    wide = np.asarray(raw).astype(np.uint32)
    found: Array = (wide << np.uint32(16)).view(np.float32)
    return found
