"""What is known of activation modules: which ones fire or rest, and which ones have two bounds to saturate at."""

from __future__ import annotations

from typing import Literal

from torch import nn

Kind = Literal["rectifier", "bounded", "other"]
RECTIFIERS = (nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish)
_BOUNDS: dict[type[nn.Module], tuple[float, float]] = {
    nn.Sigmoid: (0.0, 1.0),
    nn.Hardsigmoid: (0.0, 1.0),
    nn.Tanh: (-1.0, 1.0),
    nn.Softsign: (-1.0, 1.0),
}
# By the names that libraries give their own: transformers' GELUActivation, NewGELUActivation, SiLUActivation and so on.
_NAMED = ("gelu", "silu", "relu", "swish", "mish")
# One in, one out, and unit j stays unit j: what the units behind it do is what the units before it do.
_PASSES_ON = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.modules.dropout._DropoutNd, nn.Identity)
_MIXES = (nn.MultiheadAttention, nn.Softmax, nn.LogSoftmax, nn.Softmax2d, nn.Softmin, nn.GLU)


def bounds(module: nn.Module) -> tuple[float, float] | None:
    """The two values between which a bounded activation stays."""
    if isinstance(module, nn.Hardtanh) and not isinstance(module, nn.ReLU6):
        return float(module.min_val), float(module.max_val)
    return next((pair for cls, pair in _BOUNDS.items() if isinstance(module, cls)), None)


def kind(module: nn.Module) -> Kind:
    """`rectifier` where a unit that never exceeds 0 is dead (a leaky one is not), `bounded` where it may saturate at either end."""
    if bounds(module) is not None:
        return "bounded"
    return "rectifier" if isinstance(module, RECTIFIERS) or _looks_rectifying(module) else "other"


def keeps_units(module: nn.Module) -> bool:
    """Whether its units are those of the layer before it."""
    own = type(module).__module__ == nn.ReLU.__module__ and not isinstance(module, _MIXES)
    return own or isinstance(module, _PASSES_ON) or kind(module) != "other"


def _looks_rectifying(module: nn.Module) -> bool:
    cls = type(module)
    if cls.__module__.startswith("torch.") or not any(name in cls.__name__.lower() for name in _NAMED):
        return False
    return next(module.children(), None) is None and next(module.parameters(), None) is None
