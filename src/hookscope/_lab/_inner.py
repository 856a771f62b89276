"""The user's own model under compiler and data-parallel wrappers, and compiled code that is run as it was written."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn


def inner(model: nn.Module) -> nn.Module:
    """The model without wrappers, whose own forward takes anything."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(under := model._modules.get("_orig_mod"), nn.Module):
            model = under
        else:
            return model


def running_eagerly() -> AbstractContextManager[Any]:
    """Within it nothing compiled runs: hooks that were not there when a region was compiled are passed by in silence."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
