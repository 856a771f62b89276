"""The same parameters, read again and again where they lie: what the kernel is told of them is prepared once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from .._core._stats import WIDTH, Rows
from ._backend import KERNEL


class Repeated:
    """`jobs` are those of `sampled_job`, each with its sample, which is held.

    >>> from hookscope._stats import sampled_job
    >>> p, sample = nn.Parameter(torch.tensor([3.0, -4.0])), torch.empty(2)
    >>> if (job := sampled_job(p, (1, 1), sample)) is not None:
    ...     repeated = Repeated([job], [sample])
    ...     print(repeated.read([p], change=False)[0, 4:6].tolist())
    [-1.0, 25.0]
    """

    def __init__(self, jobs: Sequence[tuple[int, ...]], samples: Sequence[torch.Tensor]) -> None:
        self._samples = list(samples)
        self._jobs = np.array([(*job[:6], sample.numel()) for job, sample in zip(jobs, samples, strict=True)], np.int64)
        self._address: int = self._jobs.__array_interface__["data"][0]

    def read(self, parameters: list[nn.Parameter], *, change: bool) -> Rows | None:
        """A row for each, and their samples are taken; or, of a `change`, one of what has changed in these since. None if one of them has
        moved: nothing is done then.
        """
        rows = np.empty((len(parameters), WIDTH))
        assert KERNEL is not None
        return rows if KERNEL.repeat(parameters, torch.Tensor, self._address, rows.__array_interface__["data"][0], int(change)) else None
