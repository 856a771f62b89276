"""Little programs under discovery, and what was recorded of them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import hookscope as hs
from hookscope._record import Meta, RunWriter
from hookscope._watch import Settings, discover


def discovered(folder: Path, program: Callable[[], object], select: object = "**") -> hs.Run:
    """Run `program` under discovery; every global hook is gone afterwards."""
    gc.collect()  # what an earlier test has left is not taken off meanwhile
    before = _global_hooks()
    with closing(discover(Settings(hs.select(select), on_finding="ignore"), RunWriter(folder / "run", Meta()))):
        program()
    assert _global_hooks() == before
    return hs.Run(folder / "run")


def _global_hooks() -> list[dict[int, Any]]:
    modules = torch_module._global_forward_pre_hooks, torch_module._global_module_registration_hooks
    others = torch_module._global_parameter_registration_hooks, _global_optimizer_pre_hooks, _global_optimizer_post_hooks
    return [dict(hooks) for hooks in (*modules, *others)]


def sgd(*models: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.01)


def step(model: Callable[..., torch.Tensor], optimizer: torch.optim.Optimizer, x: torch.Tensor | None = None) -> None:
    optimizer.zero_grad()
    model(torch.ones(3, 2) if x is None else x).pow(2).mean().backward()
    optimizer.step()


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


def present(run: hs.Run, step: int = 0) -> set[str]:
    """Names of the sites with a row at a step, without those of the step itself."""
    sites = [run.sites[number] for number in set(run.rows(step, step).site.tolist())]
    return {site.name for site in sites if site.kind not in ("loss", "scalar")}


def of_modules(*paths: str) -> set[str]:
    return {f"{path}:{kind}" for path in paths for kind in ("output", "output_grad")}


def of_parameters(*paths: str) -> set[str]:
    return {f"{path}:{kind}" for path in paths for kind in ("param", "param_grad", "update")}


# Every site of `two_layers()` in a step.
WHOLE = (
    {"(root):input"}
    | of_modules("(root)", "0", "1", "2")
    | of_parameters(*(f"{layer}.{name}" for layer in (0, 2) for name in ("weight", "bias")))
)
