"""A distributed tensor on one rank: the part that lies here, and which part of the whole that is. No other rank is asked for anything."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_PLAIN = frozenset({torch.Tensor, nn.Parameter})


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The elements that this rank holds of a DTensor; any other tensor itself."""
    if type(tensor) in _PLAIN:
        return tensor
    part = getattr(tensor, "_local_tensor", tensor)
    return part if isinstance(part, torch.Tensor) else tensor


def is_distributed(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor."""
    return type(tensor) not in _PLAIN and hasattr(tensor, "_local_tensor") and hasattr(tensor, "placements")


def is_partial(tensor: torch.Tensor) -> bool:
    """Whether what each rank holds are terms of a sum, and not numbers of the tensor."""
    return is_distributed(tensor) and any(placement.is_partial() for placement in _placements(tensor))


def part_of(tensor: torch.Tensor) -> str:
    """`"0:1/4"`: of four parts along dimension 0 the second; several are joined by commas, empty is the whole.

    Equal words mean equal elements: dimensions of a mesh along which a tensor is replicated are left out.
    """
    if not is_distributed(tensor):
        return ""
    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]  # a DTensor
    here = mesh.get_coordinate()
    if here is None:  # this rank has no part in it
        return ""
    along = [(p.dim, here[i], mesh.size(i)) for i, p in enumerate(_placements(tensor)) if not (p.is_replicate() or p.is_partial())]
    return ",".join(f"{dim}:{place}/{size}" for dim, place, size in along if size > 1)


def tensor_group(model: nn.Module) -> list[int]:
    """The ranks, this one among them, that work on the same samples as this one: those over which tensor parallelism has spread the model.

    What FSDP spreads is gathered for each use, on other samples, and makes no such group.
    """
    leading = _gathered_dimensions(model)
    spread = [parameter for parameter in model.parameters() if is_distributed(parameter)]
    return sorted({rank for parameter in spread for rank in _beside(parameter, leading)})


def _beside(parameter: torch.Tensor, leading: int) -> list[int]:
    """The ranks of its mesh, this one's coordinate in the first dimensions kept."""
    mesh: Any = parameter.device_mesh  # type: ignore[attr-defined]  # a DTensor
    here = mesh.get_coordinate()
    if here is None or mesh.ndim <= leading:
        return []
    ranks = mesh.mesh[tuple(here[:leading])]
    return [int(rank) for rank in ranks.flatten().tolist()]


def _gathered_dimensions(model: nn.Module) -> int:
    """The first dimensions of the parameters' meshes that are those of `fully_shard`: 1, or 2 where groups of ranks are replicas."""
    most = 0
    for module in model.modules():
        state = getattr(module, "_get_fsdp_state", None)
        group = getattr(state(), "_fsdp_param_group", None) if callable(state) else None
        mesh = getattr(getattr(group, "mesh_info", None), "mesh", None)
        most = max(most, 0 if mesh is None else int(mesh.ndim))
    return most


def _placements(tensor: torch.Tensor) -> Any:
    return tensor.placements  # type: ignore[attr-defined]  # a DTensor
