"""Gradients of both sides: at the outputs of modules in order of the backward, and of parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from ._book import Book, Key
from ._measure import Distance
from ._outputs import Known, compare
from ._pairing import Pairs
from ._parameters import ParameterDifference
from ._prints import Print
from ._store import Store
from ._tolerance import Tol, unit

FLOOR = 0.1  # of the largest: a gradient much smaller is mostly the rounding of what cancels in it (the bias of a key, one before a norm)

NOTHING = Distance(math.inf, math.inf, math.nan, math.inf)  # from a gradient to none


@dataclass(frozen=True, slots=True)
class GradientDifference:
    """One gradient: `output` of a module, or `parameter`; in the order in which the backward makes them.

    `lacking` is the side that has none, `a` or `b`, empty where both have one.
    """

    a: str
    b: str
    kind: Literal["output", "parameter"]
    far: Distance
    limit: float
    diverges: bool
    order: int = 0
    lacking: Literal["", "a", "b"] = ""

    @property
    def sentence(self) -> str:
        """How far, where."""
        if self.lacking:
            has, name = ("b", self.b) if self.lacking == "a" else ("a", self.a)
            return f"{name} has a gradient in {has} and none in {self.lacking}"
        what = "gradient at the output of" if self.kind == "output" else "gradient of"
        return f"{what} {self.a} differs by {self.far.relative:.1e} where {self.limit:.1e} would be rounding"


@dataclass(slots=True)
class GradientEar:
    """Compares the gradients of side b with those in the book as they arrive."""

    book: Book
    store: Store
    tol: Tol
    pairs: Pairs
    rows: list[GradientDifference] = field(default_factory=list)

    def output(self, key: Key, index: int, path: str, grad: torch.Tensor) -> None:
        partner = {b: a for a, b in self.pairs.single.items()}.get(key[0])
        call = None if partner is None else self.book.calls.get((partner, key[1]))
        if call is not None and partner is not None and index < len(call.grads):
            self._add((partner or "(root)", key[0] or "(root)"), "output", call.grads[index], (path, grad), -call.left)

    def parameters(self, grads: dict[str, torch.Tensor], same: Sequence[ParameterDifference]) -> None:
        """Those of parameters that are one to one; where one side alone has a gradient, that is a divergence."""
        for row in (row for row in same if row.kind == "parameter" and row.a and row.b and row.layout != "joined"):
            if (row.a in self.book.grads) != (row.b in grads):
                lacking: Literal["a", "b"] = "b" if row.a in self.book.grads else "a"
                self.rows.append(GradientDifference(row.a, row.b, "parameter", NOTHING, 0.0, diverges=True, lacking=lacking))
            elif row.b in grads:
                grad = grads[row.b].t() if row.layout == "transposed" else grads[row.b]
                self._add((row.a, row.b), "parameter", self.book.grads[row.a], ("", grad), 0)

    def _add(
        self, names: tuple[str, str], kind: Literal["output", "parameter"], ours: Print, theirs: tuple[str, torch.Tensor], order: int
    ) -> None:
        far = compare([Known(ours)], [theirs], self.store).distance
        if far is None:
            return
        largest = max((p.norm / math.sqrt(max(p.numel, 1)) for p in self.book.grads.values()), default=0.0)
        floor = FLOOR * largest * math.sqrt(ours.numel) if kind == "parameter" else 0.0
        apart = far.relative * ours.norm if ours.norm else float(theirs[1].double().norm())
        roundoff = unit((ours.dtype, str(theirs[1].dtype).removeprefix("torch.")))
        limit = self.tol if self.tol != "auto" else roundoff * 64 * math.sqrt(max(len(self.book.calls), 1))
        diverges = far.only_a + far.only_b > 0 or not (far.exact or apart <= limit * (ours.norm + floor))
        self.rows.append(GradientDifference(*names, kind, far, limit, diverges, order))


def first_diverging(rows: Sequence[GradientDifference]) -> GradientDifference | None:
    """The first one in order of the backward."""
    bad = [row for row in rows if row.diverges]
    return min(bad, key=lambda row: (row.kind == "parameter", row.order), default=None)
