"""One tensor into counts by binary exponent: by the native kernel where it can read the memory, by torch operations elsewhere."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from hookscope._core._errors import UsageError
from hookscope._core._exponents import BINS, INF, LOWEST, NAN, SLOTS, ZEROS, Exponents

from ._backend import KERNEL
from ._fallback import CPU_CHUNK, DEVICE_CHUNK
from ._plain import FLOATS, flat, plain

_CODES = {dtype: code for code, dtype in enumerate(FLOATS)} if KERNEL else {}


class Layout(NamedTuple):
    """How a dtype keeps its exponent: integers of its size, bits of mantissa, and the exponent that a field of 0 would stand for."""

    bits: torch.dtype
    mantissa: int
    base: int


LAYOUTS = {
    torch.float32: Layout(torch.int32, 23, -127),
    torch.bfloat16: Layout(torch.int16, 7, -127),
    torch.float16: Layout(torch.int16, 10, -15),
    torch.float64: Layout(torch.int64, 52, -1023),
}


def histogram_of(tensor: torch.Tensor) -> Exponents:
    """The counts by binary exponent of a tensor's elements, each as it is stored; `UsageError` where there are no numbers to read.

    What is read and how it counts is as in `reduce_into`. On a device other than the CPU this waits for the result; `count_into` does not.

    >>> e = histogram_of(torch.tensor([0.0, 1.0, -1.5, 3e-8, float("nan")], dtype=torch.float16))
    >>> e.zeros, e.nan, e.quantile(1.0), e.imprecise("float16")
    (1, 1, (1.0, 2.0), 0.3333333333333333)
    """
    with torch.inference_mode(mode=False):
        counts = torch.zeros(SLOTS, dtype=torch.int64, device=tensor.device)
    if not count_into(counts, tensor):
        raise UsageError(f"a tensor of type {type(tensor).__name__} on {tensor.device} has no numbers to read: give one that holds memory")
    return Exponents(counts.cpu().numpy().astype(np.int64, copy=False))


def count_into(counts: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Add a tensor's counts to `counts`, [282] int64 on the tensor's device; False, and nothing added, if there are no numbers to read.

    Nothing waits for the device, and what `reduce_into` leaves alone stays as it is.
    """
    found = plain(tensor)
    if found is None or found.values.device != counts.device:
        return False
    values = flat(found.values)
    code = _CODES.get(values.dtype)
    if KERNEL is not None and code is not None and values.is_cpu:
        KERNEL.exponents(values.data_ptr(), values.numel(), code, counts.data_ptr(), 0, found.repeats)
    else:
        for chunk in torch.split(values, CPU_CHUNK if values.is_cpu else DEVICE_CHUNK):
            counts += exponents_of(chunk) * found.repeats
    counts[ZEROS] += found.implicit_zeros
    return True


def exponents_of(x: torch.Tensor) -> torch.Tensor:
    """The counts of a plain one-dimensional tensor, [282] int64 on its device, by torch operations on its bits.

    Bits, because with `torch.set_flush_denormal(True)` arithmetic takes a subnormal for 0.

    >>> exponents_of(torch.tensor([1.0, 1.9, 0.0])).nonzero().flatten().tolist()
    [150, 279]
    """
    x = x if x.dtype in LAYOUTS else x.to(torch.float32 if x.device.type == "mps" else torch.float64)
    layout = LAYOUTS[x.dtype]
    size = x.view(layout.bits) & torch.iinfo(layout.bits).max
    field, mantissa = size >> layout.mantissa, size & ((1 << layout.mantissa) - 1)
    # The mantissa of a subnormal is a whole number, and as a float32 has an exponent field of its own; those of float64 share a bin.
    below = (mantissa.to(torch.float32).view(torch.int32) >> 23) - 127 + layout.base + 1 - layout.mantissa
    exponent = torch.where(field > 0, field.to(torch.int32) + layout.base, below)
    slot = (exponent - (LOWEST - 1)).clamp(0, BINS - 1)
    infinity = torch.iinfo(layout.bits).max >> layout.mantissa << layout.mantissa
    for condition, place in ((size == 0, ZEROS), (size > infinity, NAN), (size == infinity, INF)):
        slot = torch.where(condition, place, slot)
    counts = torch.zeros(SLOTS, dtype=torch.int64, device=x.device)
    return counts.scatter_add_(0, slot.long(), torch.ones_like(slot, dtype=torch.int64))
