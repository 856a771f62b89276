"""A tensor that a user gives to an op, made to fit the tensor that is edited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import torch

from ..._core._errors import UsageError
from ..._core._names import near
from ..._core._site import Site
from .._analyze._analysis import Analysis
from .._analyze._layer import Layer
from .._extract._extracted import Extracted
from ._place import Place

Number: TypeAlias = float | torch.Tensor
Source: TypeAlias = "torch.Tensor | Mapping[Any, Any] | Any"


def tensor_of(given: Any, what: str) -> torch.Tensor:
    """Numbers, arrays and tensors as a tensor; one that needs gradients stays what it is."""
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(f"{what} is a {type(given).__name__}, which is no tensor: give a number, an array or a tensor") from None


def fitted(given: torch.Tensor, value: torch.Tensor, place: Place, what: str) -> torch.Tensor:
    """`given` so that it broadcasts to `value`: one number per unit lies along the axis of the units."""
    tensor = given.to(value.device, value.dtype if given.is_floating_point() or given.is_complex() else None)
    axis = place.unit_axis(value) if value.dim() else 0
    if tensor.dim() == 1 and value.dim() and tensor.shape[0] == value.shape[axis]:
        shape = [1] * value.dim()
        shape[axis] = -1
        return tensor.view(shape)
    if not _broadcasts(tensor.shape, value.shape):
        units = f", or {value.shape[axis]} numbers, one for each unit" if value.dim() > 1 else ""
        raise UsageError(
            f"{what} of shape {tuple(tensor.shape)} does not fit {place.site.name} of shape {tuple(value.shape)}: "
            f"give that shape, one that broadcasts to it{units}"
        )
    return tensor


def spread(given: torch.Tensor, value: torch.Tensor, place: Place, what: str) -> torch.Tensor:
    """`given`, fitted, in the shape of `value`; a copy where it stands for all of it, since the model may write into what it gets."""
    whole = fitted(given, value, place, what).expand_as(value)
    return whole.clone() if place.mask is None else whole


def _broadcasts(given: torch.Size, to: torch.Size) -> bool:
    return len(given) <= len(to) and all(mine in (1, theirs) for mine, theirs in zip(reversed(given), reversed(to), strict=False))


def by_site(source: Any) -> Any:
    """What was extracted or captured, or the means of an analysis, by the names of sites; where there are several calls, each by its
    number.

    Anything else is returned as it is.
    """
    if isinstance(source, Extracted):
        named = [(key.site.name, key.call, tensor) for key, tensor in source.items()]
    elif isinstance(source, Analysis):
        named = [(*_placed(one), torch.from_numpy(one.stats.mean)) for one in source]
    else:
        return source
    calls: dict[str, dict[int, torch.Tensor]] = {}
    for name, call, tensor in named:
        calls.setdefault(name, {})[call] = tensor
    return {name: held[0] if list(held) == [0] else held for name, held in calls.items()}


def _placed(layer: Layer) -> tuple[str, int]:
    """The site of a layer, and its call, both of which its name tells."""
    path = layer.path or "(root)"
    leaf, _, call = layer.name[len(path) :].partition("@")
    return f"{path}:output{leaf}", int(call or 0)


def of_call(given: Any, place: Place, what: str) -> Any:
    """What a source holds for the call under way, where it holds calls; else itself."""
    if isinstance(given, list | tuple):
        given = dict(enumerate(given))
    if not isinstance(given, dict):
        return given
    if place.call not in given:
        held = ", ".join(map(str, given))
        raise UsageError(f"{what} holds the calls {held} of {place.site.name} and not call {place.call}: narrow it by at(calls=...)")
    return given[place.call]


def is_mapping(source: Any) -> bool:
    """Whether tensors are to be looked up in it by site."""
    return hasattr(source, "keys") and hasattr(source, "__getitem__")


def found(source: Any, site: Site, what: str) -> Any:
    """What a mapping holds for a site: under its name, under its name without the output path, under its path, or under the site itself."""
    plain = f"{site.full_path}:{site.kind}"
    keys = list(source.keys())
    for key in (site.name, plain, site.full_path, site.path):
        if key in keys:
            return source[key]
    for key in keys:
        if isinstance(key, Site) and f"{key.full_path}:{key.kind}" == plain:
            return source[key]
    if not site.output_path and (inside := [key for key in keys if isinstance(key, str) and key.startswith((f"{plain}[", f"{plain}."))]):
        return source[inside[0]]  # the first tensor of a structure is the one that is edited
    raise UsageError(f"{what} holds nothing for {plain}: {_meant(plain, keys)}")


def _meant(name: str, keys: Iterable[Any]) -> str:
    names = [key if isinstance(key, str) else getattr(key, "name", repr(key)) for key in keys]
    close = near(name, names)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"it holds {', '.join(map(repr, names[:5]))}{' and more' if len(names) > 5 else ''}" if names else "it is empty"
