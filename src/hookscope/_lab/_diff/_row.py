"""One pair of sites, compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ._measure import Distance

Status = Literal["equal", "rounding", "inherited", "added", "unknown"]


@dataclass(frozen=True, slots=True, repr=False)
class SiteDifference:
    """How far the outputs of a module of `a` and of its partner in `b` are apart, and whose doing that is.

    `inputs` and `total` compare what went in and what came out; `added` what comes out when both are given a's inputs, None where that is
    not known, for the reason in `note`. `limit` is the relative L2 error that rounding explains here, from `limit_from`: the dtypes, a
    `measured` rounding error, or `given`. `status`: `equal` to the last bit, `rounding` within the limit, `inherited` beyond it but not
    of the module's own making, `added` by this module, `unknown`. `layout` says how the axes of b were moved, `shift` by which
    constant whole numbers that went in differ. `likely` are causes,
    likeliest first. `entered` and `left` are a's order of execution.
    """

    a: str
    b: str
    call: int
    module_class: str
    status: Status
    inputs: Distance | None
    total: Distance | None
    added: Distance | None
    limit: float
    limit_from: str
    entered: int
    left: int
    layout: str = ""
    note: str = ""
    shift: str = ""
    likely: tuple[str, ...] = ()

    def __repr__(self) -> str:
        far = self.added or self.total
        size = "" if far is None else f", relative {far.relative:.1e}, limit {self.limit:.1e}"
        likely = f", likely {self.likely[0]!r}" if self.likely else ""
        return f"<{self.name} ({self.module_class}): {self.status}{size}{likely}>"

    @property
    def name(self) -> str:
        """Where: a's path, with b's where that is another, and the call where there are several."""
        place = self.a if self.a == self.b else f"{self.a} = {self.b}"
        return f"{place}@{self.call}" if self.call else place
