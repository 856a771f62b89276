"""What each backward alone adds to a parameter's gradient: `param_grad/micro`, read only where a selection asks for it by that name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import nn

from .._core._site import Site
from .._taps._inventory import candidates, is_lazy, parameters
from ._activations import Activations
from ._chosen import MICRO, Chosen


def watch_micro_gradients(model: nn.Module, name: str, chosen: Chosen, activations: Activations, undo: ExitStack) -> None:
    """Hook the parameters of `model` that `chosen` asks for; a hook on a leaf sees what arrives, before it is added to `.grad`."""
    sites = {site.path: site for site in candidates(model, name) if site.kind == "param"}
    for named in parameters(model):
        parameter = named.parameter
        if (name, named.path) in chosen.micros and parameter.requires_grad and not is_lazy(parameter):
            hook = _reader(replace(sites[named.path], kind="param_grad", label=MICRO), activations)
            undo.callback(parameter.register_hook(hook).remove)  # type: ignore[no-untyped-call]  # torch leaves it unannotated


def _reader(site: Site, activations: Activations) -> Callable[[torch.Tensor], None]:
    def read(grad: torch.Tensor) -> None:
        activations.read_micro(site, grad)

    read.__torch_unserializable__ = True  # type: ignore[attr-defined]  # torch would warn, at each pickle, that it leaves the hook out
    return read
