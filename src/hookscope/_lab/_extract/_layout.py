"""Which dimension of a module's tensor is the batch, which the channels, and which are positions.

`"NCHW"` names them one by one: N the batch, C the channels, every other letter a position. It is told by the user, declared by the module
(`output_fmt`, `batch_first`) or known for its class; from the sizes of the dimensions nothing is guessed.
"""

from __future__ import annotations

import re

from torch import nn

from ..._core._errors import UsageError
from .._unit_axis import CHANNELS_FIRST, is_unbatched

_LAST = (nn.Linear, nn.Bilinear, nn.LayerNorm, nn.RMSNorm, nn.Embedding)
OVER_SEQUENCES = (nn.modules.conv.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.InstanceNorm1d, nn.MaxPool1d, nn.AvgPool1d)
_POSITIONS = {3: "L", 4: "HW", 5: "DHW"}
_WRITTEN = re.compile(r"(?=.*N)(?=.*C)[A-Z]+")


def checked_layout(layout: str) -> str:
    """Raises `UsageError` for what is no layout."""
    if not _WRITTEN.fullmatch(layout) or len(set(layout)) < len(layout):
        raise UsageError(
            f"layout {layout!r} is none: write a letter for each dimension, N the batch, C the channels, as in 'NCHW' or 'NLC'"
        )
    return layout


def layout_of(module: nn.Module, dims: int) -> str | None:
    """The layout of what `module` returns, where it has `dims` dimensions; None where nobody has said."""
    if isinstance(module, CHANNELS_FIRST) and is_unbatched(module, dims):
        raise UsageError(f"a {type(module).__name__} gave a tensor of {dims} dimensions, a sample without a batch: give a batch of one")
    if dims < 3:
        return "NC"[:dims]
    declared = getattr(module, "output_fmt", None)
    if declared is not None:
        written = str(getattr(declared, "value", declared)).upper()
        return written if len(written) == dims and _WRITTEN.fullmatch(written) else None
    if isinstance(module, nn.Sequential) and len(module):
        return layout_of(module[-1], dims)
    if isinstance(module, CHANNELS_FIRST):
        return "NC" + _POSITIONS.get(dims, "DHWUVXYZ"[: dims - 2])
    if isinstance(module, _LAST):
        return "N" + _POSITIONS.get(dims, "DHWUVXYZ"[: dims - 2]) + "C"
    return _of_sequences(module) if dims == 3 else None


def is_mute(module: nn.Module, dims: int) -> bool:
    """Whether nothing in it tells what three dimensions are: an activation may follow a convolution over (N, C, L) or a linear layer."""
    declares = any(hasattr(module, name) for name in ("output_fmt", "batch_first"))
    bare = next(module.children(), None) is None and next(module.parameters(), None) is None
    return dims == 3 and bare and not declares and not isinstance(module, CHANNELS_FIRST + _LAST)


def is_state(module: nn.Module, path: str) -> bool:
    """Whether `path` leads to a state of an LSTM or GRU, (layers, N, C) whatever `batch_first` says: the second in and out."""
    if isinstance(module, nn.Sequential) and len(module):
        return is_state(module[-1], path)
    return isinstance(module, nn.RNNBase) and path.startswith(("[1]", "['hx']", ".hx"))


def _of_sequences(module: nn.Module) -> str | None:
    """Three dimensions are batch, sequence, channels, the order of transformers, unless the module or what is in it says otherwise."""
    batch_first = getattr(module, "batch_first", None)
    if batch_first is None:
        inside = [b for m in module.modules() if isinstance(b := getattr(m, "batch_first", None), bool)]
        batch_first = inside[0] if inside else True
    if not batch_first:
        return "LNC"
    return None if any(isinstance(m, OVER_SEQUENCES) for m in module.modules()) else "NLC"
