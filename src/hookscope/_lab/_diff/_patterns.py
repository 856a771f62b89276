"""What the two outputs themselves say about why they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.nn import functional

from ._measure import distance

TIGHT = 1e-3  # of the difference itself: a pattern has to explain all but this share of it
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the identity": lambda x: x,
    "ReLU": functional.relu,
    "GELU": functional.gelu,
    "GELU by tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick GELU, x sigmoid(1.702 x)": lambda x: x * torch.sigmoid(1.702 * x),
    "SiLU": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "ReLU squared": lambda x: functional.relu(x).square(),
    "leaky ReLU with slope 0.01": functional.leaky_relu,
}
_UNITS = (("float16", 2.0**-11), ("bfloat16", 2.0**-8))


def patterns(a: torch.Tensor, b: torch.Tensor, inputs: torch.Tensor | None, unit: float) -> Iterator[str]:
    """Sentences about `a` and `b`, of one shape, likeliest first; `inputs` went into both, `unit` is the roundoff of their dtypes."""
    a, b = (t.double().nan_to_num(0.0, 0.0, 0.0) for t in (a, b))
    tight = max(TIGHT, 64 * unit)
    found = [sentence for pattern in (_zeros, _scaled, _by_feature, _constant, _shifted, _turned) for sentence in pattern(a, b, tight)]
    found += _on_grid(a, b, unit)
    if not found and inputs is not None and inputs.shape == a.shape:
        found += _elementwise(a, b, inputs.double(), tight)
    yield from found or _as_rounding(a, b, unit)


def _off(a: torch.Tensor, b: torch.Tensor) -> float:
    return distance(a.contiguous(), b.contiguous()).relative


def _elementwise(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, tight: float) -> Iterator[str]:
    """Each side is a known function of the input: told only where it explains the side far better than the other's function does."""
    apart, names = _off(a, b), []
    for side in (a, b):
        errors = {name: _off(side, function(x)) for name, function in _ACTIVATIONS.items()}
        name = min(errors, key=errors.__getitem__)
        names.append(name if errors[name] < min(tight, apart / 10) else "")
    if names[0] and names[1] and names[0] != names[1]:
        yield f"a computes {names[0]}, b computes {names[1]}"
    elif names[1] == "the identity":
        yield "b passes its input on unchanged"
    elif names[0] == "the identity":
        yield "a passes its input on unchanged"


def _zeros(a: torch.Tensor, b: torch.Tensor, tight: float) -> Iterator[str]:
    for one, other, names in ((a, b, "ba"), (b, a, "ab")):
        dropped = (other == 0) & (one != 0)
        share = float(dropped.double().mean())
        kept = ~dropped
        if 0.005 < share < 0.995 and _off(one[kept] / (1 - share), other[kept]) < max(tight, 0.3 * share):
            yield f"dropout is on in {names[0]} and off in {names[1]}: {share:.0%} of the elements are 0 there, and the others larger"
            return


def _scaled(a: torch.Tensor, b: torch.Tensor, tight: float) -> Iterator[str]:
    far = distance(a, b)
    if abs(far.scale - 1) > 1e-4 and _off(a * far.scale, b) < min(tight, abs(far.scale - 1) / 20):
        inverse = f" = 1/{1 / far.scale:.6g}" if 0 < abs(far.scale) < 1 else ""
        yield f"b is a times {far.scale:.6g}{inverse}: a scale is missing, or applied twice"


def _by_feature(a: torch.Tensor, b: torch.Tensor, tight: float) -> Iterator[str]:
    """A factor for each element of the last axis, told only where there are many more rows than it takes to fit anything."""
    rows, others = (t.reshape(-1, a.shape[-1]) if a.dim() > 1 else None for t in (a, b))
    if rows is None or others is None or len(rows) < 4 or abs(distance(a, b).cosine) < 0.2:
        return
    factor = (rows * others).sum(0) / rows.square().sum(0).clamp_min(1e-300)
    if float(factor.std(correction=0)) > 1e-4 and _off(rows * factor, others) < min(tight, _off(a, b) / 20):
        yield "b is a times a factor of its own for each feature: the weight of a norm, or a gain, is on one side only"


def _constant(a: torch.Tensor, b: torch.Tensor, tight: float) -> Iterator[str]:
    rows = (b - a).reshape(-1, a.shape[-1]) if a.dim() > 1 else None
    if rows is not None and len(rows) > 1:
        mean = rows.mean(0, keepdim=True)
        if _off(rows, mean.expand_as(rows)) < tight * 10:
            yield "the difference is the same in every row: a bias, or another constant, is on one side only"


def _shifted(a: torch.Tensor, b: torch.Tensor, tight: float) -> Iterator[str]:
    for axis in range(min(a.dim() - 1, 3)):
        size = a.shape[axis] - 1
        if size < 2:
            continue
        for one, other, word in ((a, b, "later"), (b, a, "earlier")):
            if _off(one.narrow(axis, 0, size), other.narrow(axis, 1, size)) < tight:
                yield f"b is a, one position {word} along axis {axis}"
                return


def _turned(a: torch.Tensor, b: torch.Tensor, tight: float) -> Iterator[str]:
    for first in range(a.dim()):
        for second in range(first + 1, a.dim()):
            if a.shape[first] == a.shape[second] and _off(a, b.transpose(first, second)) < tight:
                yield f"b is a with the axes {first} and {second} exchanged"
                return


def _on_grid(a: torch.Tensor, b: torch.Tensor, unit: float) -> Iterator[str]:
    """Values of one side that are all numbers of a coarser dtype, while the other side's are not."""
    for name, side, other in (("a", a, b), ("b", b, a)):
        for dtype, grid in ((torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)):
            if grid > 4 * unit and side.numel() > 8 and bool(side.any()) and _all(side, dtype) and not _all(other, dtype):
                yield f"every value of {name} is a {str(dtype).removeprefix('torch.')} number: it was rounded to that on the way"
                return


def _all(values: torch.Tensor, dtype: torch.dtype) -> bool:
    return bool((values.to(dtype).double() == values).all())


def _as_rounding(a: torch.Tensor, b: torch.Tensor, unit: float) -> Iterator[str]:
    """A difference as large as the rounding of a coarser dtype."""
    apart = _off(a, b)
    for label, grid in _UNITS:
        if grid > 4 * unit and grid / 10 < apart < grid * 2:
            yield f"of the size of {label} rounding ({grid:.0e}): look for a cast"
            return
