"""Any tensor as plain numbers in memory: the values that are stored, how often they count, and how many zeros are not stored."""

from __future__ import annotations

from dataclasses import dataclass

import torch

SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True, eq=False)
class Plain:
    """Real strided values without autograd; each counts `repeats` times, and `implicit_zeros` more elements are 0."""

    values: torch.Tensor
    repeats: int = 1
    implicit_zeros: int = 0


def plain(tensor: torch.Tensor) -> Plain | None:
    """What is to be read of a tensor, or None where there are no numbers to read.

    None for meta and fake tensors, tensors wrapped by a functorch transform, uninitialised parameters, storage that was freed, packed
    sub-byte floats, and tensor subclasses that define their own dispatch.
    """
    stored = _unwrapped(tensor)
    if stored is None:
        return None
    numel, implicit = stored.numel(), 0
    if stored.layout in SPARSE:
        stored = (stored.coalesce() if stored.layout is torch.sparse_coo else stored).values()
        implicit = numel - stored.numel()
    values = None if _is_freed(stored) else _real(_strided(stored))
    if values is None:
        return None
    once, repeats = _without_repeats(values)
    return Plain(once, repeats, implicit)


def _is_freed(tensor: torch.Tensor) -> bool:
    """Whether there are elements but no memory, as in a sharded parameter between its uses: an address then is the bare offset."""
    if tensor.layout is not torch.strided or tensor.is_nested or not tensor.numel():
        return False
    return tensor.data_ptr() == tensor.storage_offset() * tensor.element_size()


def flat(values: torch.Tensor) -> torch.Tensor:
    """The elements in some order, contiguous: the same memory where it has no gaps, else a copy."""
    if is_dense(values):
        return values.as_strided((values.numel(),), (1,), values.storage_offset())
    return values.contiguous().view(-1)  # reshape alone would leave the gaps of a single column


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill a stretch of memory, each once, in any order of the dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor | None:
    """Detached; a distributed tensor's local part, a subclass as torch.Tensor; None for what holds no memory of its own."""
    if any(p.is_partial() for p in getattr(tensor, "placements", ())):
        return None  # a DTensor whose parts are terms of a sum: no part holds numbers of the tensor
    for name in ("to_local", "trigger_wait"):  # DTensor; AsyncCollectiveTensor
        if (unwrap := getattr(tensor, name, None)) is not None:
            tensor = unwrap()
    transformed = torch._C._functorch.maybe_current_level() is not None or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    if transformed or torch.nn.parameter.is_lazy(tensor):
        return None
    if tensor.is_nested:
        return tensor.detach()
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or tensor.is_meta:
        return None
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach()


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_nested:
        return torch.cat([part.reshape(-1) for part in tensor.unbind()])  # values() of a jagged one may contain its holes
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _real(tensor: torch.Tensor) -> torch.Tensor | None:
    """Complex as absolute values, negated views resolved, floats narrower than 16 bits as float32."""
    if tensor.is_complex():
        return (tensor.to(torch.complex64) if tensor.dtype is torch.complex32 else tensor).abs()
    if tensor.dtype.is_floating_point and tensor.dtype not in FLOATS:
        return tensor.to(torch.float32) if tensor.dtype.itemsize == 1 and "x2" not in str(tensor.dtype) else None
    return tensor.resolve_neg()


def _without_repeats(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """An expanded dimension read once, with the number of times it counts."""
    repeats = 1
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor, repeats = tensor.narrow(dim, 0, 1), repeats * size
    return tensor, repeats
