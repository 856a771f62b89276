"""What `trace_patch` found: for each site and position how much of the difference it carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 12


@dataclass(frozen=True, repr=False, eq=False)
class PatchTrace:
    """`effect[i, j]` is the share of the difference that comes back with the clean value of `sites[i]` at `positions[j]`.

    0 is the corrupt run, 1 the clean one; more or less than that is possible. `clean` and `corrupt` are the metric of the two runs. NaN
    where a site has no such position. With `positions="whole"` there is one column, position None.

    >>> import torch
    >>> import hookscope as hs
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1))
    >>> trace = hs.trace_patch(model, torch.ones(1, 3, 2), torch.zeros(1, 3, 2), "0", lambda output: output[0, 1].item())
    >>> trace.effect.round(3).tolist(), trace.sites, trace.positions
    ([[0.0, 1.0, 0.0]], ('0:output',), (0, 1, 2))
    """

    effect: npt.NDArray[np.float64]
    sites: tuple[str, ...]
    positions: tuple[int | None, ...]
    clean: float
    corrupt: float

    def to_pandas(self) -> pd.DataFrame:
        """A DataFrame with a row for each site and a column for each position; needs pandas."""
        import pandas as pd

        rows, columns = pd.Index(self.sites, name="site"), pd.Index(self.positions, name="position")
        frame: pd.DataFrame = pd.DataFrame(self.effect, index=rows, columns=columns)
        return frame

    def __repr__(self) -> str:
        shown = self.positions[:_SHOWN]
        table = [["site", *("whole" if position is None else str(position) for position in shown)]]
        table += [[site, *(f"{x:.2f}" for x in row[:_SHOWN])] for site, row in zip(self.sites, self.effect.tolist(), strict=True)]
        widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
        lines = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in table]
        more = [f"and {len(self.positions) - _SHOWN} more positions"] if len(self.positions) > _SHOWN else []
        return "\n".join([f"clean: {self.clean:.6g}, corrupt: {self.corrupt:.6g}", *lines, *more])
