"""Where the units are in what a layer returns: channels behind convolutions, the last dimension behind linear layers."""

from __future__ import annotations

from typing import Any

from torch import nn

from .._taps._leaves import leaves

CHANNELS_FIRST = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.LocalResponseNorm,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
)
CHANNELS_LAST = (nn.Linear, nn.Bilinear, nn.LayerNorm, nn.RMSNorm, nn.Embedding, nn.EmbeddingBag, nn.RNNBase, nn.RNNCellBase)


def axis_of(module: nn.Module, output: Any) -> int | None:
    """The dimension along which the units of `module` lie in its output; None where the module does not say."""
    if isinstance(module, CHANNELS_FIRST):
        found = leaves(output)
        return 0 if found and is_unbatched(module, found[0][1].dim()) else 1
    return -1 if isinstance(module, CHANNELS_LAST) else None


def is_unbatched(module: nn.Module, dims: int) -> bool:
    """Whether `dims` are those of a single sample: convolutions, pooling and instance norms take one without a batch, channels first."""
    names = (c.__name__ for c in type(module).__mro__ if c.__module__.startswith("torch.nn.modules."))
    spatial = next((int(name[-2]) for name in names if name[-2:] in ("1d", "2d", "3d")), None)
    return not isinstance(module, nn.modules.batchnorm._BatchNorm) and spatial is not None and dims == spatial + 1
