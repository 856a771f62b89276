"""A tensor's value as it is at this moment, whatever is written to its memory afterwards.

A reference with a version check cannot promise that: a write through `.data`, through an array that shares the memory, or to a tensor of
inference mode moves no version, and a value that is found to be lost cannot be brought back. So what is kept has memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ._options import Options


def kept(value: torch.Tensor, source: torch.Tensor, options: Options) -> torch.Tensor:
    """`value`, which is `source` or was made from it: without its graph unless that is wanted, cast, moved, copied if it shares memory."""
    if value.is_inference() and options.clone is not False:
        # outside inference mode its copy is an ordinary tensor, which may be used in training later
        with torch.inference_mode(mode=False), torch.no_grad():
            return _moved(value, options).clone()
    moved = _moved(value if options.grad else value.detach(), options)
    return moved.clone() if options.clone is not False and _shares(moved, source) else moved


def _moved(value: torch.Tensor, options: Options) -> torch.Tensor:
    device = value.device if options.to_device is None else torch.device(options.to_device)
    dtype = options.dtype if value.is_floating_point() and isinstance(options.dtype, torch.dtype) else value.dtype
    return value.to(device=device, dtype=dtype)


def _shares(value: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether a write to `source` could change `value`. Layouts without one storage cannot be asked."""
    return value is source or value.layout is not torch.strided or source.layout is not torch.strided or _is_alias(value, source)


_is_alias: Callable[[torch.Tensor, torch.Tensor], bool] = getattr(torch._C, "_is_alias_of")  # noqa: B009 # absent from torch's own stubs


def version(tensor: torch.Tensor) -> int:
    """The count of in-place writes to it; always 0 for a tensor of inference mode, which has none."""
    return 0 if tensor.is_inference() else tensor._version
