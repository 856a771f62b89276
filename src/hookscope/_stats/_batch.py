"""Many reductions in one call of the kernel, at a fraction of what a call for each tensor costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from .._core._stats import WIDTH, Rows
from ._backend import KERNEL
from ._reduce import address_of, code_of


class Batch:
    """Tensors to reduce on this machine's processor: gather with the other methods, then `read`. They must not change in between.

    What the kernel cannot read where it lies is refused, and left to `reduce_into`.

    >>> batch = Batch()
    >>> batch.add(torch.tensor([3.0, -4.0])), batch.add(torch.tensor([1, 2]))
    (True, False)
    >>> batch.read()[0, 4:6].tolist()
    [-1.0, 25.0]
    """

    __slots__ = ("_held", "_jobs", "total")

    def __init__(self) -> None:
        self._jobs: list[int] = []
        self.total = (0.0, 0.0)  # of what was read last: elements that are NaN or Inf, and the sum of squares of all others
        self._held: list[torch.Tensor] = []  # so that their memory lives until then

    def __len__(self) -> int:
        return len(self._held)

    def add(self, tensor: torch.Tensor) -> bool:
        """Its stats are the next row; False if it is refused."""
        if (pointer := address_of(tensor)) < 0:
            return False
        self._jobs += (code_of(tensor), pointer, tensor.numel(), 1, 1, 0, 0)
        self._held.append(tensor)
        return True

    def again(self, tensor: torch.Tensor, job: Sequence[int]) -> None:
        """The same with what `sampled_job` or `change_job` has returned for it, which still holds."""
        self._jobs += job
        self._held.append(tensor)

    def read(self) -> Rows:
        """A row for each of them, in order of adding; the batch is empty again."""
        rows = np.empty((len(self._held), WIDTH))
        self.total = (0.0, 0.0)
        if self._held:
            assert KERNEL is not None
            self.total = KERNEL.reduce_many(self._jobs, rows.__array_interface__["data"][0])
        self._jobs, self._held = [], []
        return rows


def sampled_job(tensor: torch.Tensor, runs: tuple[int, int], sample: torch.Tensor) -> tuple[int, ...] | None:
    """For `Batch.again`: reduce the tensor, and copy into the contiguous `sample` its whole runs, as it lies in memory; `runs` is their
    length and the way from one to the next. It holds while the tensor's address, [1] of it, and number of elements, [2], stay what they
    are. None if refused, or if there is nothing to sample.
    """
    if (pointer := address_of(tensor)) < 0 or not sample.is_cpu or not tensor.numel():
        return None
    return code_of(tensor), pointer, tensor.numel(), *runs, sample.data_ptr(), 0


def change_job(job: Sequence[int], sample: torch.Tensor) -> tuple[int, ...]:
    """For `Batch.again`, from a `sampled_job`: reduce what has changed since in the sample; halves are subtracted as float32."""
    return job[0], job[1], sample.numel(), job[3], job[4], job[5], 1
