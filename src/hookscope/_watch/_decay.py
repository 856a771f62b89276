"""How much of what an optimizer changed is weight decay."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ._parameters import Parameters

# Those of torch that shrink the weights by lr * weight_decay directly; Muon is younger than the oldest torch we support.
_DECOUPLED = tuple(getattr(torch.optim, name) for name in ("AdamW", "Adafactor", "Muon") if hasattr(torch.optim, name))


def decay_share(optimizer: torch.optim.Optimizer, parameters: Parameters) -> float | None:
    """||lr * weight_decay * w|| / ||dw|| over the parameters that decay, just after the step; None where there is no such part.

    Decay is a part of its own only where it is decoupled from the gradient's moments, as in AdamW, or where there are no moments, as in SGD
    without momentum; in Adam's L2 penalty it goes through the moments and cannot be told from the gradient.
    """
    decaying = [(rate, p) for group in optimizer.param_groups if (rate := decay_rate(optimizer, group)) for p in group["params"]]
    of = [parameter for _, parameter in decaying]
    with np.errstate(invalid="ignore"):  # an infinite rate times a weight of 0
        decayed = np.square([rate for rate, _ in decaying]) * parameters.square_norms(of, "param")
        changed = parameters.square_norms(of, "update")
        both = np.isfinite(decayed + changed)
    whole = changed[both].sum()
    return math.sqrt(decayed[both].sum() / whole) if whole > 0 else None


def decay_rate(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> float:
    """Which part of its weights a group takes away by itself in a step."""
    rate, decay = group.get("lr"), group.get("weight_decay")
    if isinstance(rate, torch.Tensor) and rate.is_cpu:
        rate = float(rate)
    if isinstance(rate, (int, float)) and isinstance(decay, (int, float)) and _separate(optimizer, group):
        return float(rate * decay)
    return 0.0


def _separate(optimizer: torch.optim.Optimizer, group: dict[str, object]) -> bool:
    if isinstance(optimizer, torch.optim.SGD):
        return not group.get("momentum")
    return isinstance(optimizer, _DECOUPLED) or bool(group.get("decoupled_weight_decay"))
