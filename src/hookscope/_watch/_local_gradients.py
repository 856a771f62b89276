"""What a rank's own backward has left in a gradient before DistributedDataParallel averages it: `param_grad/local`.

A post-accumulate hook sees it before the reducer writes the average, which is what the optimizer gets (`param_grad`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import nn

from .._core._site import Site
from .._taps._flat import pieces
from .._taps._inventory import candidates, is_lazy, parameters
from .._taps._parts import is_distributed
from ._activations import Activations
from ._chosen import LOCAL, Chosen


def watch_local_gradients(model: nn.Module, name: str, chosen: Chosen, activations: Activations, undo: ExitStack) -> None:
    """Hook the parameters of `model` that `chosen` keeps, if a DistributedDataParallel averages them over several ranks."""
    if not by_reducer(model):
        return
    sites = {site.path: site for site in candidates(model, name) if site.kind == "param"}
    for named in parameters(model):
        parameter = named.parameter
        site = replace(sites[named.path], kind="param_grad", label=LOCAL)
        if parameter.requires_grad and not is_lazy(parameter) and not is_distributed(parameter) and chosen.keeps(site):
            hook = _reader(site, activations)
            undo.callback(parameter.register_post_accumulate_grad_hook(hook).remove)  # type: ignore[no-untyped-call]  # unannotated


def by_reducer(model: nn.Module) -> bool:
    """Whether there is a DistributedDataParallel of several ranks in it."""
    wrapper = nn.parallel.DistributedDataParallel
    return any(isinstance(m, wrapper) and torch.distributed.get_world_size(m.process_group) > 1 for m in model.modules())


def is_averaged(model: nn.Module) -> bool:
    """Whether ranks train one model together: under DistributedDataParallel of several ranks, or FSDP of either kind."""
    return by_reducer(model) or any(hasattr(module, "_get_fsdp_state") for module in model.modules()) or bool(pieces(model))


def _reader(site: Site, activations: Activations) -> Callable[[torch.Tensor], None]:
    def read(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            activations.read_micro(site, parameter.grad)

    read.__torch_unserializable__ = True  # type: ignore[attr-defined]  # torch would warn, at each pickle, that it leaves the hook out
    return read
