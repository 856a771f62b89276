"""The sites a model could have, named as its own `named_modules()` and `named_parameters()` name them, without running it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .._core._errors import AttachError
from .._core._names import strip_wrappers
from .._core._select import select_sites
from .._core._site import MODULE_KINDS, PARAM_KINDS, Site
from ._flat import pieces
from ._parts import is_distributed, local, part_of

_LEADING = (nn.DataParallel, nn.parallel.DistributedDataParallel)


@dataclass(frozen=True, slots=True)
class NamedModule:
    """A module with its clean path; `aliases` are its other paths (a module used in two places)."""

    path: str
    module: nn.Module
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedParameter:
    """A parameter with its clean path; `aliases` are the other names of a tied one."""

    path: str
    parameter: nn.Parameter
    aliases: tuple[str, ...] = ()

    @property
    def owner(self) -> str:
        """Path of the module it belongs to."""
        return self.path.rpartition(".")[0]


def modules(model: nn.Module) -> list[NamedModule]:
    """Every module once, in registration order; wrappers' own layers (DDP, compiled, checkpointed) count as the module they wrap."""
    found: dict[int, tuple[nn.Module, list[str]]] = {}
    for name, module in every_name(model.named_modules):
        found.setdefault(id(module), (module, []))[1].append(clean(model, name))
    # A wrapper and the module inside it have one clean path: the inner one is the user's, the outer one only passes it on.
    by_path = {paths[0]: NamedModule(paths[0], module, tuple(dict.fromkeys(paths[1:]))) for module, paths in found.values()}
    return list(by_path.values())


def parameters(model: nn.Module) -> list[NamedParameter]:
    """Every parameter once, in registration order."""
    found: dict[int, tuple[nn.Parameter, list[str]]] = {}
    for name, parameter in every_name(model.named_parameters):
        found.setdefault(id(parameter), (parameter, []))[1].append(clean(model, name))
    return [NamedParameter(paths[0], p, tuple(dict.fromkeys(paths[1:]))) for p, paths in found.values()]


def every_name(walk: Callable[..., Iterator[tuple[str, Any]]]) -> list[tuple[str, Any]]:
    """What `named_modules` or `named_parameters` of a model yields, under all names."""
    try:
        return list(walk(remove_duplicate=False))
    except RecursionError:  # a module inside itself, such as a child that keeps its parent, has names without end
        return list(walk())


def clean(model: nn.Module, name: str) -> str:
    """`name` as the user's own model would have it."""
    outermost = getattr(model, "_orig_mod", model)  # compiled, it may hold a DDP
    return strip_wrappers(name, leading_module=isinstance(outermost, _LEADING))


def bases(module: nn.Module) -> tuple[str, ...]:
    """Qualified class names of a module, most derived first, up to `torch.nn.Module`."""
    return tuple(f"{c.__module__}.{c.__qualname__}" for c in type(module).__mro__ if issubclass(c, nn.Module))


def candidates(model: nn.Module, name: str = "") -> Iterator[Site]:
    """Every site that `model` could have; ids are -1, shapes of outputs are not known before they are seen."""
    inside = modules(model)
    kinds = {named.path: bases(named.module) for named in inside}
    for named in inside:
        for kind in MODULE_KINDS:
            yield Site(-1, named.path, kind, model=name, module=named.path, bases=kinds[named.path], aliases=named.aliases)
    cut = pieces(model)
    for parameter in parameters(model):
        facts = {**tensor_facts(parameter.parameter), **cut.get(id(parameter.parameter), {})}
        owner = kinds.get(parameter.owner, ())
        for kind in PARAM_KINDS:
            yield Site(-1, parameter.path, kind, model=name, module=parameter.owner, bases=owner, aliases=parameter.aliases, **facts)


def tensor_facts(tensor: torch.Tensor) -> dict[str, Any]:
    """Shape, dtype, device and size as `Site` keeps them; no shape has a parameter not yet materialised, or a nested tensor."""
    lazy = is_lazy(tensor)
    spread = {"part": part_of(tensor), "held": local(tensor).numel()} if is_distributed(tensor) else {}
    return {
        "shape": None if lazy or tensor.is_nested else tuple(tensor.shape),
        "numel": None if lazy else tensor.numel(),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": str(tensor.device),
        "trainable": tensor.requires_grad if isinstance(tensor, nn.Parameter) else None,
        **spread,
    }


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether a parameter of a lazy module has no shape yet."""
    return nn.parameter.is_lazy(tensor)


def sites(model: nn.Module, selection: Any = "**") -> list[Site]:
    """What `selection` would match in `model`, without running it.

    Returns sites in the model's own order: for each module its `input`, `output` and `output_grad`, then for each parameter its `param`,
    `param_grad` and `update`. Ids are -1. The tensors inside a structured output are known only once the model runs.
    Raises `SelectionError` where nothing matches, naming near misses.

    >>> from torch import nn
    >>> import hookscope as hs
    >>> [site.name for site in hs.sites(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), "*:output")]
    ['0:output', '1:output']
    """
    if not isinstance(model, nn.Module):
        raise AttachError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    return select_sites(list(candidates(model)), selection, leaves=False)
