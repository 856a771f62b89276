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


def marks_of(parameters: list[nn.Parameter]) -> Marks:
    """Numbers that change whenever another tensor becomes the gradient, or either is written to in place or given other memory.

    >>> p = nn.Parameter(torch.ones(2))
    >>> before = marks_of([p])
    >>> p.grad = torch.zeros(2)
    >>> (before != marks_of([p])).tolist()
    [[True, True, False, False]]
    """
    marks = np.empty((len(parameters), 4), np.int64)
    if KERNEL is not None:
        KERNEL.marks(parameters, marks.__array_interface__["data"][0])
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


def glance(references: list[weakref.ref[nn.Parameter]], marks: Marks) -> tuple[float, float, int] | None:
    """Write the marks of these parameters; how many elements of their gradients are NaN or Inf, the sum of squares of all others (what is
    below 1e-38 may count as 0), and how many gradients it takes another way to read. None if a parameter is gone, or without the kernel.

    >>> p = nn.Parameter(torch.ones(2))
    >>> p.grad = torch.tensor([3.0, 4.0])
    >>> glance([weakref.ref(p)], np.empty((1, 4), np.int64))
    (0.0, 25.0, 0)
    """
    return None if KERNEL is None else KERNEL.glance(references, torch.Tensor, _CODES, marks.__array_interface__["data"][0])


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
