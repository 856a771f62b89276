"""A frame: all stats of one step, as it travels from watching to the sinks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ._stats import Rows

STEP_LEVEL = -1  # micro and seq of a row that belongs to the step as a whole: parameters, updates, scalars


@dataclass(frozen=True, slots=True)
class Frame:
    """Row i speaks of `site[i]`, in micro-batch `micro[i]`, at that module's `call[i]`.

    `seq[i]` is the place in the order of execution within the micro-batch (forward: counting up from 0 in the order the outputs appeared;
    backward: the seq of the output whose gradient it is).
    """

    step: int
    micro: NDArray[np.int32]
    site: NDArray[np.int32]
    call: NDArray[np.int32]
    seq: NDArray[np.int32]
    stats: Rows

    def __len__(self) -> int:
        return len(self.site)
