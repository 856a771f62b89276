"""`GradientMonitor`: the class that hook tutorials teach, on top of a watch, with its faults mended."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from .._core._errors import AttachError, FindingWarning, UsageError
from .._core._select import select
from .._core._site import Site
from .._core._stats import Stats
from .._record import MemoryWriter, Meta
from .._taps._inventory import modules
from ._notice import warn
from ._session import Session
from ._settings import Settings
from ._tap import MicroRows


@dataclass(slots=True)
class _Norms:
    """What is kept of one layer's norms: mean, max and min are those of the finite ones."""

    finite: int = 0
    total: float = 0.0
    max: float = -math.inf
    min: float = math.inf
    latest: float = math.nan

    def add(self, norm: float) -> None:
        self.latest = norm
        if math.isfinite(norm):
            self.finite += 1
            self.total += norm
            self.max, self.min = max(self.max, norm), min(self.min, norm)

    def report(self) -> dict[str, float]:
        if not self.finite:
            return {"mean": math.nan, "max": math.nan, "min": math.nan, "latest": self.latest}
        return {"mean": self.total / self.finite, "max": self.max, "min": self.min, "latest": self.latest}


class GradientMonitor:
    """Follow the norm of the gradient that arrives at each layer's output, and warn where it is too large.

    A layer is a module without children, or with parameters of its own (`nn.MultiheadAttention`).

    `grad_norm_threshold` is that limit (L2 norm; a NaN or Inf is always too large); `log_grad_norms=False` keeps no history.
    `grad_stats[layer]` lists the norms, one for each call of the layer in each backward. `anomaly_events` lists what was too large:
    `layer`, `step`, `call`, `grad_norm`, `grad_mean`, `grad_std`, `grad_max` (largest magnitude) and `weight_grad_norm`, the norm of the
    layer's `weight.grad` when the backward is over, None where there is none.

    Unlike the well-known snippet it works with in-place activations, reused and nested layers and any structure of outputs, never changes
    a gradient, and takes all its hooks away. The norm of a gradient of a mean loss shrinks with the batch size. The scale of a `GradScaler`
    is taken out of the norms, but not of `weight_grad_norm`, which is what `.grad` holds. Raises `UsageError` for a threshold that is none.

    >>> from torch import nn
    >>> import hookscope as hs
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
    >>> with hs.GradientMonitor(model, grad_norm_threshold=10.0) as monitor:
    ...     model(torch.ones(2, 4)).sum().backward()
    >>> sorted(monitor.get_gradient_report())
    ['0', '1', '2']
    >>> round(monitor.grad_stats["2"][0], 4)
    1.4142
    """

    def __init__(self, model: nn.Module, grad_norm_threshold: float = 10.0, log_grad_norms: bool = True) -> None:
        if not isinstance(model, nn.Module):
            raise AttachError(f"model is a {type(model).__name__}, not a torch.nn.Module")
        if not grad_norm_threshold > 0:
            raise UsageError(f"grad_norm_threshold={grad_norm_threshold!r} is no limit: give a norm above 0, such as 10.0")
        self.model = model
        self.grad_norm_threshold = grad_norm_threshold
        self.log_grad_norms = log_grad_norms
        self.grad_stats: dict[str, list[float]] = {}
        self.anomaly_events: list[dict[str, Any]] = []
        self._norms: dict[str, _Norms] = {}
        self._session: Session | None = None

    def attach(self) -> GradientMonitor:
        """Start following; once attached, a second call does nothing."""
        if self._session is None:
            layers = {named.path for named in modules(self.model) if _is_layer(named.module)}
            chosen = select(lambda site: site.kind == "output_grad" and site.path in layers)
            self._session = Session(Settings(chosen, every=1, on_finding="ignore"), MemoryWriter(Meta(torch=torch.__version__)))
            self._session.micro_listener = self._heard
            self._session.add_models({"": weakref.ref(self.model)}, strict=True)
        return self

    def detach(self) -> None:
        """Stop following and take every hook away; what was gathered stays."""
        if self._session is not None:
            self._session.close("finished")
            self._session = None

    def __enter__(self) -> GradientMonitor:
        return self.attach()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.detach()

    def get_gradient_report(self) -> dict[str, dict[str, float]]:
        """`{layer: {"mean", "max", "min", "latest"}}` of the norms so far; the first three over the finite ones."""
        return {layer: norms.report() for layer, norms in self._norms.items()}

    def _heard(self, micro: MicroRows, sites: Sequence[Site]) -> None:
        heard = [(sites[site], call, Stats(*row)) for site, call, row in zip(micro.site, micro.call, micro.stats.tolist(), strict=True)]
        for site, call, stats in heard:
            if site.kind == "output_grad" and not site.label:  # a gradient of a gradient, as a penalty takes it, is another quantity
                self._take(f"{site.full_path}{site.output_path}", site.path, int(call), stats)

    def _take(self, layer: str, path: str, call: int, stats: Stats) -> None:
        finite = stats.count - stats.nan - stats.inf
        norm = math.nan if stats.nan else math.inf if stats.inf else math.sqrt(stats.sumsq)
        self._norms.setdefault(layer, _Norms()).add(norm)
        if self.log_grad_norms:
            self.grad_stats.setdefault(layer, []).append(norm)
        if norm <= self.grad_norm_threshold:
            return
        mean = stats.sum / finite if finite else math.nan
        std = math.sqrt(max(0.0, stats.sumsq / finite - mean * mean)) if finite else math.nan
        step = self._step()
        event = {
            "layer": layer,
            "step": step,
            "call": call,
            "grad_norm": norm,
            "grad_mean": mean,
            "grad_std": std,
            "grad_max": max(abs(stats.min), abs(stats.max)) if stats.min <= stats.max else math.nan,
            "weight_grad_norm": _weight_grad_norm(self.model, path),
        }
        self.anomaly_events.append(event)
        warn(
            f"gradient at layer {layer!r} has norm {norm:.4g}, above the threshold {self.grad_norm_threshold:g}, at step {step}",
            FindingWarning,
        )

    def _step(self) -> int:
        if self._session is None:
            return -1
        return self._session.steps.clock.under_way


def _is_layer(module: nn.Module) -> bool:
    """A leaf, or what has parameters of its own beside its children, as attention has, or a weight that is computed from others."""
    owns = any(p is not None for p in module._parameters.values()) or is_parametrized(module)
    return owns or next(module.children(), None) is None


def _weight_grad_norm(model: nn.Module, path: str) -> float | None:
    module = next((named.module for named in modules(model) if named.path == path), None)
    weight = None if module is None else module._parameters.get("weight")  # never module.weight: that may run a parametrization
    if weight is None or weight.grad is None:
        return None
    grad = weight.grad.coalesce().values() if weight.grad.is_sparse else weight.grad
    return float(torch.linalg.vector_norm(grad.detach().double()))
