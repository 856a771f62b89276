"""A tensor's fingerprint: a hash that tells equality, statistics and a sample that tell how far two are apart without the tensors."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..._taps._modes import unseen

SAMPLED = 256  # elements, evenly spaced: 2 kB a tensor
PIECE = 1 << 20  # elements that are looked at together, in float64


@dataclass(frozen=True, slots=True)
class Print:
    """What is known of a tensor when it is gone; `path` leads to it inside what a module took or returned.

    `total`, `squares` and `absmax` are of its finite elements. `digest` covers values, dtype and shape.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    digest: str
    total: float
    squares: float
    absmax: float
    nan: int
    inf: int
    sample: tuple[float, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def norm(self) -> float:
        return math.sqrt(self.squares)

    def as_json(self) -> dict[str, Any]:
        """In JSON's types; a sample's NaN and Inf as text."""
        return {**asdict(self), "sample": [value if math.isfinite(value) else str(value) for value in self.sample]}


def print_from_json(found: Mapping[str, Any]) -> Print:
    """The print that `as_json` wrote."""
    shape, sample = tuple(found["shape"]), tuple(float(value) for value in found["sample"])
    return Print(**{**found, "shape": shape, "sample": sample})


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The values as an ordinary contiguous tensor on the CPU, not a copy where it is one already."""
    with unseen(), torch.no_grad():
        value = tensor.detach()
        if value.layout != torch.strided:
            value = value.to_dense()
        elif value.is_nested:
            value = value.to_padded_tensor(0.0)
        if value.is_quantized:
            value = value.dequantize()
        return value.to("cpu").resolve_conj().resolve_neg().contiguous()


def digest(tensor: torch.Tensor) -> str:
    """The hash of values, dtype and shape of a tensor as `plain` gives it."""
    with unseen(), torch.no_grad():
        dtype = str(tensor.dtype).removeprefix("torch.")
        hashed = hashlib.blake2b(f"{dtype}{tuple(tensor.shape)}".encode(), digest_size=16)
        if tensor.numel():
            hashed.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
        return hashed.hexdigest()


def fingerprint(tensor: torch.Tensor, path: str = "") -> Print:
    """The fingerprint of a tensor as `plain` gives it."""
    with unseen(), torch.no_grad():
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = tuple(tensor.shape)
        flat = tensor.reshape(-1)
        values = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
        total = squares = absmax = 0.0
        nan = inf = 0
        for part in torch.split(values, PIECE) if values.numel() else ():
            number = part.double()
            nan += int(number.isnan().sum())
            inf += int(number.isinf().sum())
            number = number.nan_to_num(0.0, 0.0, 0.0)
            total, squares = total + float(number.sum()), squares + float(number.square().sum())
            absmax = max(absmax, float(number.abs().max()))
        return Print(path, shape, dtype, digest(tensor), total, squares, absmax, nan, inf, sample(values))


def sample(values: torch.Tensor) -> tuple[float, ...]:
    """Elements at even distances."""
    flat = values.reshape(-1)
    return tuple(flat[:: max(1, -(-flat.numel() // SAMPLED))].double().tolist())
