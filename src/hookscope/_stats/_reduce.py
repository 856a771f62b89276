"""One tensor in, one row written: the native kernel where it can read the memory, torch operations elsewhere."""

from __future__ import annotations

from dataclasses import replace

import torch

from ._backend import KERNEL
from ._cells import Row
from ._device import reducible
from ._fallback import stats_in_chunks
from ._launch import reduce_one
from ._plain import FLOATS, Plain, flat, is_dense, plain

_CODES = {dtype: code for code, dtype in enumerate(FLOATS)} if KERNEL else {}
_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool})
FEW = 1 << 16  # elements of which a copy costs nothing
_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})


def reduce_into(row: Row, tensor: torch.Tensor) -> bool:
    """Overwrite the row with the stats of the tensor; True if it was written, False if there are no numbers to read.

    Every element counts as it is stored, in float64 arithmetic: complex as its absolute value, quantized as what it stands for, sparse
    with its implicit zeros (duplicates summed first), expanded as often as it is repeated, a distributed tensor as its local part.
    False for meta, fake and functorch-wrapped tensors, uninitialised parameters, freed storage, tensor subclasses with a dispatch of
    their own, and a tensor on another device than the row. Nothing is recorded by autograd, no random number is drawn, the tensor is not
    changed, and on other devices the host does not wait (except that coalescing a sparse tensor does).

    >>> from hookscope._stats import Cells
    >>> cells = Cells("cpu")
    >>> row = cells.row()
    >>> reduce_into(row, torch.tensor([3.0, -4.0]))
    True
    >>> cells.read([row])[0].tolist()
    [2.0, 0.0, 0.0, 0.0, -1.0, 25.0, -4.0, 3.0]
    """
    if row.pointer and (pointer := address_of(tensor)) >= 0:
        _kernel(pointer, tensor.numel(), _CODES[tensor.dtype], row.pointer, 1)
        return True
    found = plain(tensor)
    if found is None or found.values.device != row.view.device:
        return False
    if row.pointer and found.values.dtype in _INTEGERS and found.values.numel() <= FEW:
        found = replace(found, values=found.values.double())  # token ids: one operation, where to read them as they are takes several
    _write(row, found)
    return True


def address_of(tensor: torch.Tensor) -> int:
    """Where the elements lie, if the kernel can read them as they are: memory that is exactly the elements, in whatever order; else -1.

    This is the common case, and costs a few attribute reads.
    """
    if type(tensor) not in _PLAIN_TYPES or tensor.dtype not in _CODES or not tensor.is_cpu:
        return -1
    try:
        pointer = tensor.data_ptr()
    except RuntimeError:  # sparse, or wrapped: no memory of its own
        return -1
    if tensor.is_nested or tensor.is_neg() or not (tensor.is_contiguous() or is_dense(tensor)):
        return -1
    if pointer == tensor.storage_offset() * tensor.element_size() and tensor.numel():  # freed
        return -1
    return pointer


def code_of(tensor: torch.Tensor) -> int:
    """The kernel's name for the dtype of a tensor that it can read."""
    return _CODES[tensor.dtype]


def _write(row: Row, found: Plain) -> None:
    values, code = found.values, _CODES.get(found.values.dtype)
    if values.is_cpu and row.pointer and code is not None:
        run = flat(values)
        _kernel(run.data_ptr(), run.numel(), code, row.pointer, found.repeats)
    elif reducible(values):
        reduce_one(row.view[0], flat(values))
        if found.repeats > 1:
            row.view[0, :6] *= found.repeats
    else:
        cells = stats_in_chunks(flat(values), row.view.dtype)
        cells[:6] *= found.repeats
        row.view[0].copy_(cells)
    if found.implicit_zeros:
        _add_zeros(row.view[0], found.implicit_zeros)


def _add_zeros(cells: torch.Tensor, n: int) -> None:
    cells[0] += n
    cells[3] += n
    cells[6].clamp_(max=0.0)
    cells[7].clamp_(min=0.0)


def _kernel(pointer: int, n: int, code: int, out: int, repeats: int) -> None:
    assert KERNEL is not None
    KERNEL.reduce(pointer, n, code, out, repeats)
