"""What stands in many parameters and gradients, asked in one call: what each is, and what the stats of all gradients are."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .._core._stats import EMPTY, WIDTH, Rows
from ._backend import KERNEL
from ._cells import Row
from ._plain import FLOATS

_CODES = {dtype: code for code, dtype in enumerate(FLOATS)}
Marks = NDArray[np.int64]  # [n, 4]: identity and version of the gradient (0 and -1 for none), version and address of the parameter


@dataclass(frozen=True, slots=True)
class Gradients:
    """`rows` [n, 8], of which those at `refused` are still to be written; how many elements are `bad`, and the `squares` of all others."""

    rows: Rows
    refused: list[int]
    bad: float
    squares: float


@dataclass(frozen=True, slots=True)
class Place:
    """Memory for marks, and its address, which takes numpy longer to tell than a kernel to read a small model."""

    marks: Marks
    address: int


def place_for_marks(count: int) -> Place:
    """Of so many parameters."""
    marks = np.empty((count, 4), np.int64)
    return Place(marks, marks.__array_interface__["data"][0])


def marks_of(parameters: list[nn.Parameter]) -> Marks:
    """Numbers that change whenever another tensor becomes the gradient, or either is written to in place or given other memory.

    >>> p = nn.Parameter(torch.ones(2))
    >>> before = marks_of([p])
    >>> p.grad = torch.zeros(2)
    >>> (before != marks_of([p])).tolist()
    [[True, True, False, False]]
    """
    place = place_for_marks(len(parameters))
    marks = place.marks
    if KERNEL is not None:
        KERNEL.marks(parameters, place.address)
    else:
        for i, parameter in enumerate(parameters):
            grad = parameter.grad
            of_grad = (0, -1) if grad is None else (id(grad), _version(grad))
            marks[i] = (*of_grad, _version(parameter), _address(parameter))
    return marks


def read_gradients(parameters: list[nn.Parameter]) -> Gradients:
    """Stats of the gradients, a row for each parameter; one without a gradient has those of no element.

    >>> p, q = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    >>> p.grad = torch.tensor([3.0, 4.0])
    >>> read_gradients([p, q]).rows[:, 0].tolist()
    [2.0, 0.0]
    """
    rows = np.empty((len(parameters), WIDTH))
    rows[:] = np.array(EMPTY)
    if KERNEL is None:
        return Gradients(rows, [i for i, p in enumerate(parameters) if p.grad is not None], 0.0, 0.0)
    return Gradients(rows, *KERNEL.gradients(parameters, torch.Tensor, _CODES, rows.__array_interface__["data"][0]))


def glance(references: list[weakref.ref[nn.Parameter]], into: Place) -> tuple[float, float, int] | None:
    """Write the marks of these parameters; how many elements of their gradients are NaN or Inf, the sum of squares of all others (what is
    below 1e-38 may count as 0), and how many gradients it takes another way to read. None if a parameter is gone, or without the kernel.

    >>> p = nn.Parameter(torch.ones(2))
    >>> p.grad = torch.tensor([3.0, 4.0])
    >>> glance([weakref.ref(p)], place_for_marks(1))
    (0.0, 25.0, 0)
    """
    return None if KERNEL is None else KERNEL.glance(references, torch.Tensor, _CODES, into.address)


def read_plain(row: Row, tensor: torch.Tensor) -> bool:
    """Overwrite the row with the stats of the tensor as `reduce_into` does, where the kernel can read it as it is; False where not.

    >>> from hookscope._stats import Cells
    >>> row = Cells("cpu").row()
    >>> read_plain(row, torch.tensor([3.0, -4.0])), row.host.tolist()[:2], read_plain(row, torch.ones(2, 2).T)
    (True, [2.0, 0.0], False)
    """
    return KERNEL is not None and row.pointer > 0 and KERNEL.read(tensor, torch.Tensor, _CODES, row.pointer)


def _version(tensor: torch.Tensor) -> int:
    try:
        return -1 if tensor.is_inference() else tensor._version
    except (RuntimeError, ValueError):  # a parameter of a lazy module
        return -1


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.data_ptr()
    except (RuntimeError, ValueError):  # sparse, or lazy
        return -1
