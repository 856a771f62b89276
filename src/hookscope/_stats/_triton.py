"""The eight stats on a GPU, as Triton kernels: spans of tensors into partial rows, and partial rows into rows, always in the same order.

A program reads one span, lane by lane in float64: the square of a float32 is exact there and can neither overflow nor vanish. No two
programs write to one place and nothing is added atomically, so the same tensor gives the same bits again. What is NaN, Inf or zero is
told by bits, never by comparing values, because a GPU may be set to flush subnormals. Blocks that lie inside a tensor are read without a
mask, which is what lets the compiler read 16 bytes at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK, SPAN = 1024, 16384  # elements a program reads at a time, and in all
PARTS = 256  # partial rows that are merged at a time


@triton.jit
def _take(row, x, inside, masked: tl.constexpr, bits: tl.constexpr, infinity: tl.constexpr):
    nan, inf, zeros, total, squares, low, high = row
    magnitude: tl.constexpr = (1 << (bits.primitive_bitwidth - 1)) - 1
    size = x.to(bits, bitcast=True) & magnitude
    is_nan, is_inf, is_zero = size > infinity, size == infinity, size == 0
    if masked:
        is_zero = is_zero & inside
    if x.dtype == tl.bfloat16:  # the upper half of a float32; by bits, for a conversion may flush a subnormal
        value = (x.to(bits, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        value = x.to(low.dtype)
    finite = tl.where(is_nan | is_inf, 0.0, value).to(tl.float64)
    ignored = is_nan
    if masked:
        ignored = is_nan | (inside == 0)
    low = tl.minimum(low, tl.where(ignored, float("inf"), value))
    high = tl.maximum(high, tl.where(ignored, float("-inf"), value))
    counts = nan + is_nan.to(tl.int32), inf + is_inf.to(tl.int32), zeros + is_zero.to(tl.int32)
    return counts[0], counts[1], counts[2], total + finite, squares + finite * finite, low, high


@triton.jit
def _read_span(x, start, end, out, step, block: tl.constexpr, bits: tl.constexpr, infinity: tl.constexpr, wide: tl.constexpr):
    """The stats of x[start:end] but the count, at out[0], out[step], ...; masked lanes beyond the end are loaded as 0."""
    lanes = tl.arange(0, block)
    none, zero = tl.zeros([block], tl.int32), tl.zeros([block], tl.float64)
    row = none, none, none, zero, zero, tl.full([block], float("inf"), wide), tl.full([block], float("-inf"), wide)
    whole = start + (end - start) // block * block
    for at in range(start, whole, block):
        row = _take(row, tl.load(x + at + lanes), lanes, False, bits, infinity)
    if whole < end:
        inside = whole + lanes < end
        row = _take(row, tl.load(x + whole + lanes, mask=inside, other=0.0), inside, True, bits, infinity)
    nan, inf, zeros, total, squares, low, high = row
    tl.store(out, tl.sum(nan, 0).to(tl.float64))
    tl.store(out + step, tl.sum(inf, 0).to(tl.float64))
    tl.store(out + 2 * step, tl.sum(zeros, 0).to(tl.float64))
    tl.store(out + 3 * step, tl.sum(total, 0))
    tl.store(out + 4 * step, tl.sum(squares, 0))
    tl.store(out + 5 * step, tl.min(low, 0).to(tl.float64))
    tl.store(out + 6 * step, tl.max(high, 0).to(tl.float64))


@triton.jit
def read_one(x, n, out, step, block: tl.constexpr, span: tl.constexpr, bits: tl.constexpr, infinity: tl.constexpr, wide: tl.constexpr):
    """Spans of one tensor: program i reads span i into column i of [7, step]."""
    program = tl.program_id(0).to(tl.int64)
    start = program * span
    end = tl.minimum(start + span, n)
    _read_span(x, start, end, out + program, step, block, bits, infinity, wide)


@triton.jit
def read_list(
    addresses,
    sizes,
    owners,
    starts,
    out,
    step,
    element: tl.constexpr,
    aligned: tl.constexpr,
    block: tl.constexpr,
    span: tl.constexpr,
    bits: tl.constexpr,
    infinity: tl.constexpr,
    wide: tl.constexpr,
):
    """Spans of many tensors: program i reads the span of tensor owners[i] that begins at starts[i] into column i of [7, step]."""
    program = tl.program_id(0).to(tl.int64)
    owner = tl.load(owners + program)
    start = tl.multiple_of(tl.load(starts + program), span)
    x = tl.load(addresses + owner).to(tl.pointer_type(element))
    if aligned:
        x = tl.multiple_of(x, 16)
    end = tl.minimum(start + span, tl.load(sizes + owner))
    _read_span(x, start, end, out + program, step, block, bits, infinity, wide)


@triton.jit
def _merge(parts, step, first, last, row, size, block: tl.constexpr):
    """Columns first to last of [7, step], in blocks from the left, into the row of a tensor of that size."""
    lanes = tl.arange(0, block)
    zero = tl.zeros([block], tl.float64)
    nan, inf, zeros, total, squares = zero, zero, zero, zero, zero
    low, high = tl.full([block], float("inf"), tl.float64), tl.full([block], float("-inf"), tl.float64)
    for at in range(first, last, block):
        column = parts + at + lanes
        inside = at + lanes < last
        nan += tl.load(column, mask=inside, other=0.0)
        inf += tl.load(column + step, mask=inside, other=0.0)
        zeros += tl.load(column + 2 * step, mask=inside, other=0.0)
        total += tl.load(column + 3 * step, mask=inside, other=0.0)
        squares += tl.load(column + 4 * step, mask=inside, other=0.0)
        low = tl.minimum(low, tl.load(column + 5 * step, mask=inside, other=float("inf")))
        high = tl.maximum(high, tl.load(column + 6 * step, mask=inside, other=float("-inf")))
    tl.store(row, size.to(tl.float64))
    tl.store(row + 1, tl.sum(nan, 0))
    tl.store(row + 2, tl.sum(inf, 0))
    tl.store(row + 3, tl.sum(zeros, 0))
    tl.store(row + 4, tl.sum(total, 0))
    tl.store(row + 5, tl.sum(squares, 0))
    tl.store(row + 6, tl.min(low, 0))
    tl.store(row + 7, tl.max(high, 0))


@triton.jit
def merge_one(parts, step, columns, size, row, block: tl.constexpr):
    """All columns into one row."""
    zero = tl.program_id(0).to(tl.int64)
    _merge(parts, step, zero, zero + columns, row, zero + size, block)


@triton.jit
def merge_list(parts, step, firsts, sizes, rows, block: tl.constexpr):
    """Program i merges columns firsts[i] to firsts[i + 1] into the row at address rows[i]."""
    program = tl.program_id(0)
    row = tl.load(rows + program).to(tl.pointer_type(tl.float64))
    _merge(parts, step, tl.load(firsts + program), tl.load(firsts + program + 1), row, tl.load(sizes + program), block)
