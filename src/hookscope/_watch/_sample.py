"""Elements of a parameter kept from before the step, and what the step has changed in them."""

from __future__ import annotations

import math

import torch

from .._stats import Batch, change_job, is_dense, sampled_job
from .._taps._parts import local

SAMPLE = 4096  # elements of a parameter whose change is followed; the error of its rms is about 1 / sqrt(2 * 4096) = 1 %
RUN = 8  # of them in a row: a processor fetches sixteen at once, and it is the fetching that takes time


class Sample:
    """`full` takes every element instead of about `SAMPLE` of them."""

    __slots__ = ("_job", "before", "full", "runs")

    def __init__(self, *, full: bool) -> None:
        self.full = full
        self.runs = (1, 1)
        self.before: torch.Tensor | None = None
        self._job: tuple[int, ...] | None = None

    @property
    def kept(self) -> tuple[tuple[int, ...], torch.Tensor] | None:
        """The job by which the kernel reads it again, and the elements it has taken; None if it does not."""
        return None if self._job is None or self.before is None else (self._job, self.before)

    def keep(self, parameter: torch.Tensor, batch: Batch) -> bool:
        """Keep the elements as they are now, and the parameter's stats as the next row of the batch; False if it takes none."""
        parameter, job = local(parameter), self._job
        if job is not None and parameter.data_ptr() == job[1] and parameter.numel() == job[2]:
            batch.again(parameter, job)
            return True
        if self.before is None and not self.full:
            self.runs = sampling_runs(tuple(parameter.shape))
        taken = _taken(parameter, self.runs)
        with torch.inference_mode(mode=False):
            self.before = taken.clone()
        self._job = sampled_job(parameter, self.runs, self.before)
        return batch.add(parameter)

    def read_change(self, parameter: torch.Tensor, batch: Batch) -> bool:
        """What has changed since `keep` as the next row of the batch; False if it takes none."""
        parameter, job, before = local(parameter), self._job, self.before
        if job is None or before is None or parameter.data_ptr() != job[1] or parameter.numel() != job[2]:
            return False
        batch.again(parameter, change_job(job, before))
        return True

    def change(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """The same, as a tensor; None where the elements are no longer the same ones."""
        before = self.before
        if before is None:
            return None
        now = _taken(local(parameter), self.runs)
        if now.shape != before.shape or now.device != before.device:
            return None
        return now.float() - before.float() if now.dtype.itemsize < 4 else now - before  # halves differ by what need not be a half


def sampling_runs(shape: tuple[int, ...], wanted: int = SAMPLE) -> tuple[int, int]:
    """Length and distance of the runs that hold about `wanted` elements. Their distance is coprime to the rows' length: they walk through
    every column.
    """
    n, stride = math.prod(shape), math.prod(shape) * RUN // wanted
    if n <= wanted or stride <= RUN:
        return 1, 1
    while math.gcd(stride, math.prod(shape[1:])) > 1 and stride > RUN:
        stride -= 1
    return RUN, stride


def _taken(parameter: torch.Tensor, runs: tuple[int, int]) -> torch.Tensor:
    value = parameter.detach()
    if not value.is_contiguous() and is_dense(value):  # channels_last: as it lies in memory; a reshape would copy it all
        value = value.as_strided((value.numel(),), (1,))
    flat, (run, stride) = value.reshape(-1), runs
    if run == stride == 1:
        return flat
    return flat.as_strided((max(0, flat.numel() - run) // stride + 1, run), (stride, 1)).reshape(-1)
