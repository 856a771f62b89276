"""What a training leaves behind, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

Bits = dict[str, bytes | str]


def left_behind(model: nn.Module, optimizer: torch.optim.Optimizer) -> Bits:
    """Parameters, gradients, buffers, optimizer state, and the state of torch's random generator."""
    named = [*model.named_parameters(), *model.named_buffers()]
    grads = {f"{name}.grad": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return dict(_flat("", dict(named) | grads | {"optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}))


def differing(left: Bits, right: Bits) -> list[str]:
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))


def _flat(name: str, value: Any) -> Iterator[tuple[str, bytes | str]]:
    if isinstance(value, torch.Tensor):
        yield name, bytes(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, (dict, list, tuple)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(f"{name}.{key}", part)
    else:
        yield name, repr(value)
