"""How much of what an optimizer changed is weight decay."""

from __future__ import annotations

import math

import torch

from ._parameters import Parameters

# Those of torch that shrink the weights by lr * weight_decay directly; Muon is younger than the oldest torch we support.
_DECOUPLED = tuple(getattr(torch.optim, name) for name in ("AdamW", "Adafactor", "Muon") if hasattr(torch.optim, name))


def decay_share(optimizer: torch.optim.Optimizer, parameters: Parameters) -> float | None:
    """||lr * weight_decay * w|| / ||dw|| over the parameters that decay, just after the step; None where there is no such part.

    Decay is a part of its own only where it is decoupled from the gradient's moments, as in AdamW, or where there are no moments, as in SGD
    without momentum; in Adam's L2 penalty it goes through the moments and cannot be told from the gradient.
    """
    decayed = changed = 0.0
    for group in optimizer.param_groups:
        rate, decay = group.get("lr"), group.get("weight_decay")
        if not isinstance(rate, (int, float)) or not isinstance(decay, (int, float)) or decay == 0 or not _separate(optimizer, group):
            continue
        for parameter in group["params"]:
            weights, moved = parameters.square_norm(parameter, "param"), parameters.square_norm(parameter, "update")
            if weights is not None and moved is not None:
                decayed += (rate * decay) ** 2 * weights
                changed += moved
    return math.sqrt(decayed / changed) if changed > 0 else None


def _separate(optimizer: torch.optim.Optimizer, group: dict[str, object]) -> bool:
    if isinstance(optimizer, torch.optim.SGD):
        return not group.get("momentum")
    return isinstance(optimizer, _DECOUPLED) or bool(group.get("decoupled_weight_decay"))
