"""Everything that a watch could leave behind on a model or in the process."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

WRAPPED = (torch.autograd, "backward"), (torch.amp.GradScaler, "scale"), (torch.amp.GradScaler, "step"), (torch.amp.GradScaler, "update")
ORIGINALS = [getattr(owner, name) for owner, name in WRAPPED]


def on_model(*models: nn.Module) -> dict[str, Any]:
    """The attributes of every module, and what hangs in its dicts of hooks and in those of its parameters."""
    found: dict[str, Any] = {}
    for number, model in enumerate(models):
        for path, module in model.named_modules():
            found[f"{number}.{path}.__dict__"] = list(module.__dict__)
            found[f"{number}.{path}.class"] = type(module)
            for name, value in module.__dict__.items():
                if "hook" in name:
                    found[f"{number}.{path}.{name}"] = list(value.items()) if isinstance(value, dict) else value
        for path, parameter in model.named_parameters():
            found[f"{number}.{path}.__dict__"] = list(getattr(parameter, "__dict__", ()))
            hooks = parameter._backward_hooks, parameter._post_accumulate_grad_hooks
            found[f"{number}.{path}.hooks"] = [list((dicted or {}).items()) for dicted in hooks]
    return found


def in_process() -> dict[str, Any]:
    """The global hooks of torch, and which of its functions are not torch's own."""
    found = {
        name: list(value.items()) for name, value in vars(torch_module).items() if name.startswith("_global") and isinstance(value, dict)
    }
    for hooks in (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks):
        found[f"optimizer hooks {len(found)}"] = list(hooks.items())
    found["function modes"] = [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]
    replaced = [(name, owner) for (owner, name), original in zip(WRAPPED, ORIGINALS, strict=True) if getattr(owner, name) is not original]
    return {name: value for name, value in (found | {"replaced": replaced}).items() if value}
