"""Whether a tensor holds numbers that a unit could have, and if so, as a plain one."""

from __future__ import annotations

import torch

from ..._stats._plain import plain


def readable(tensor: torch.Tensor) -> torch.Tensor | str:
    """The tensor without autograd, of a real floating-point type; or why not."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return f"it returns {str(tensor.dtype).removeprefix('torch.')}, not floating-point numbers"
    if tensor.is_nested:
        return "it returns a nested tensor, whose units lie in pieces"
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided or tensor.is_meta:
        found = plain(tensor)
        if found is None or found.repeats > 1 or found.values.shape != tensor.shape:
            return f"it returns a {type(tensor).__name__} without numbers to read"
        return found.values
    return tensor.detach().abs() if tensor.is_complex() else tensor.detach()
