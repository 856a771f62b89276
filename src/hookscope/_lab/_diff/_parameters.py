"""Parameters and buffers of both sides, by their fingerprints: names, shapes, values, missing ones; a transposed weight is an equal one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from ._book import Book
from ._describe import named_tensors
from ._measure import estimate
from ._outputs import is_number
from ._pairing import Pair, Pairs
from ._prints import Print, fingerprint, plain
from ._tolerance import unit

Values = Literal["equal", "rounding", "differ", "missing in a", "missing in b", "shapes differ"]
_ROLES = {"weight": ("weight", "gamma", "kernel", "scale"), "bias": ("bias", "beta", "offset")}


@dataclass(frozen=True, slots=True)
class ParameterDifference:
    """One parameter or buffer of `a` against its partner in `b` (empty where there is none).

    `relative` is estimated from a sample and the norms where dtypes differ or values do. `layout` is `transposed` where it has to be.
    """

    a: str
    b: str
    kind: Literal["parameter", "buffer"]
    values: Values
    relative: float = 0.0
    layout: str = ""
    module: str = ""

    @property
    def agrees(self) -> bool:
        return self.values in ("equal", "rounding")

    @property
    def sentence(self) -> str:
        """What is the matter with it."""
        if self.values == "differ":
            place = self.a if self.a == self.b else f"{self.a} (b: {self.b})"
            return f"{self.kind} {place} differs by {self.relative:.1e}"
        if self.values == "shapes differ":
            return f"{self.kind} {self.a} has another shape in b"
        return f"{self.kind} {self.a or self.b} is {self.values}"


def compare_parameters(a: Book, b: Book, model: torch.nn.Module, pairs: Pairs) -> list[ParameterDifference]:
    """Every parameter and buffer of every pair of modules; `model` is b's, whose tensors are at hand."""
    tensors = {**dict(named_tensors(model, "parameters")), **dict(named_tensors(model, "buffers"))}
    found: list[ParameterDifference] = []
    for pair in pairs.found.values():
        for kind, left, right in (("parameter", a.parameters, b.parameters), ("buffer", a.buffers, b.buffers)):
            found += _of_pair(pair, (left, right), tensors, kind)  # type: ignore[arg-type]
    return found


def _owned(paths: tuple[str, ...], prints: Mapping[str, Print]) -> list[dict[str, str]]:
    """For each module, what it owns itself: the name within it -> the full name."""
    return [{n.rpartition(".")[2]: n for n in prints if n.rpartition(".")[0] == path} for path in paths]


def _of_pair(
    pair: Pair,
    prints: tuple[Mapping[str, Print], Mapping[str, Print]],
    tensors: Mapping[str, torch.Tensor],
    kind: Literal["parameter", "buffer"],
) -> Iterator[ParameterDifference]:
    left, right = (_owned(paths, side) for paths, side in zip((pair.a, pair.b), prints, strict=True))
    if len(pair.a) > 1 or len(pair.b) > 1:
        yield from _of_group(pair, (left, right), prints)
        return
    mine, theirs = left[0], right[0]
    for name, full in mine.items():
        other = theirs.get(name) or next((theirs[n] for names in _ROLES.values() if name in names for n in names if n in theirs), "")
        if other:
            row = ParameterDifference(full, other, kind, "equal", module=pair.a[0])
            yield _values(row, prints[0][full], prints[1][other], tensors.get(other))
        elif kind == "parameter":
            yield ParameterDifference(full, "", kind, "missing in b", module=pair.a[0])
    taken = {name for names in _ROLES.values() if any(n in mine for n in names) for name in names}
    for name, full in theirs.items():
        if kind == "parameter" and name not in mine and name not in taken:
            yield ParameterDifference("", full, kind, "missing in a", module=pair.a[0])


def _values(row: ParameterDifference, left: Print, right: Print, tensor: torch.Tensor | None) -> ParameterDifference:
    """The row with what the values say; `tensor` is b's, to be tried transposed."""
    if left.digest == right.digest:
        return row
    tries = [("", right)]
    if tensor is not None and tensor.dim() == 2 and tuple(tensor.shape[::-1]) == left.shape:
        tries.append(("transposed", fingerprint(plain(tensor.t().contiguous()))))
    tries = [(layout, known) for layout, known in tries if known.shape == left.shape]
    if not tries:
        return replace(row, values="shapes differ")
    layout, known = min(tries, key=lambda one: estimate(left, one[1]).relative)
    relative = estimate(left, known).relative
    rounding = is_number(left.dtype) and left.dtype != known.dtype and relative <= 2 * unit((left.dtype, known.dtype))
    values: Values = "equal" if left.digest == known.digest else "rounding" if rounding else "differ"
    return replace(row, values=values, relative=relative, layout=layout)


def _of_group(
    pair: Pair, owned: tuple[list[dict[str, str]], list[dict[str, str]]], prints: tuple[Mapping[str, Print], Mapping[str, Print]]
) -> Iterator[ParameterDifference]:  # fmt: skip
    """Only the norms and sums of the parts are compared: the parts of side a are not at hand."""
    for name in owned[0][0]:
        sides = [[prints[i][member[name]] for member in owned[i] if name in member] for i in (0, 1)]
        if not sides[1]:
            yield ParameterDifference(owned[0][0][name], "", "parameter", "missing in b", module=pair.a[0])
            continue
        norms = [sum(p.squares for p in side) ** 0.5 for side in sides]
        apart = abs(norms[0] - norms[1]) / norms[0] if norms[0] else norms[1]
        limit = max(1e-6, 2 * unit([p.dtype for side in sides for p in side]))
        b = ", ".join(member.get(name, "") for member in owned[1])
        yield ParameterDifference(owned[0][0][name], b, "parameter", "rounding" if apart <= limit else "differ", apart, "joined", pair.a[0])
