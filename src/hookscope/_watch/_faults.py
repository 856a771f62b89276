"""Settings of an optimizer under which no training can go well, and why an update from finite gradients is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .._taps._parts import local

_SQUARES = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "exp_inf")  # what torch's optimizers divide by, or by the root of
DecayRate = Callable[[torch.optim.Optimizer, dict[str, Any]], float]


def setting_faults(optimizer: torch.optim.Optimizer, decay_rate: DecayRate) -> Iterator[dict[str, Any]]:
    """`cause` and the values of each group's setting that cannot be right."""
    for group in optimizer.param_groups:
        rate = _number(group.get("lr"))
        if rate is None:
            continue
        if not math.isfinite(rate):
            yield {"cause": "lr", "lr": repr(rate)}
        elif rate < 0 and not group.get("maximize"):
            yield {"cause": "negative lr", "lr": rate}
        elif (share := decay_rate(optimizer, group)) > 2:
            yield {"cause": "decay", "lr": rate, "weight_decay": group["weight_decay"], "factor": 1 - share}


def why(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    """`cause` and what shows it; `cause` is None where nothing tells. Waits for the device."""
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    dtype = str(parameter.dtype).removeprefix("torch.")
    rate, eps = _number(group.get("lr")), _number(group.get("eps"))
    if rate is not None and not math.isfinite(rate):
        return {"cause": "lr", "lr": repr(rate)}
    own = {
        name: local(v) if isinstance(v, torch.Tensor) else v for name, v in optimizer.state.get(parameter, {}).items()
    }  # asks no other rank
    state = {name: value for name, value in own.items() if _is_real(value)}
    squares = {name: state[name] for name in _SQUARES if name in state}
    if bad := [name for name, value in state.items() if not bool(torch.isfinite(value).all())]:
        return {"cause": "state", "state": bad[0], "dtype": str(state[bad[0]].dtype).removeprefix("torch.")}
    if eps is not None and _vanishes(eps, squares) and any(bool((value == 0).any()) for value in squares.values()):
        return {"cause": "eps", "eps": eps, "dtype": dtype}
    return {"cause": "overflow" if bool(torch.isinf(local(parameter)).any()) else None, "lr": rate, "dtype": dtype}


def _vanishes(eps: float, squares: dict[str, torch.Tensor]) -> bool:
    """Whether it is 0 in the number format in which the optimizer adds it."""
    return any(float(torch.tensor(eps, dtype=value.dtype)) == 0 for value in squares.values())


def _number(value: object) -> float | None:
    if isinstance(value, torch.Tensor):
        return float(value) if value.is_cpu and value.numel() == 1 else None
    return float(value) if isinstance(value, (int, float)) else None


def _is_real(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.layout == torch.strided
