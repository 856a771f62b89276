"""One call of a module, made once more with other tensors: what the module does to the other side's inputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from ..._taps._leaves import call_leaves, leaves

Leaves = list[tuple[str, torch.Tensor]]
LARGEST = 1 << 27  # parameters and buffers of a module that is copied to float64: 1 GiB
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, type, FunctionType, BuiltinFunctionType, nn.Module)


@dataclass(frozen=True, slots=True)
class _Slot:
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Recipe:
    """A call's arguments as they are before it runs: tensors by reference, what the call may change (a cache) copied."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: Leaves

    @classmethod
    def of(cls, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recipe:
        """Raises whatever an argument that cannot be copied raises."""
        args, kwargs = tree_map(_kept, (args, kwargs))
        return cls(module, args, kwargs, call_leaves(*tree_map(_emptied, (args, kwargs))))

    def cook(self, fed: Mapping[int, torch.Tensor], state: torch.Tensor | None, *, double: bool = False) -> Leaves:
        """The outputs with the inputs of these positions replaced, in their dtype and on their device (`double`: all of it in float64)."""
        module = copy.deepcopy(self.module).double() if double else self.module
        other = {id(self.inputs[i][1]): _like(tensor, self.inputs[i][1]) for i, tensor in fed.items()}

        def filled(part: Any) -> Any:
            if not isinstance(part, _Slot):
                return copy.deepcopy(part) if not isinstance(part, _PLAIN) else part
            value = other.get(id(part.tensor), part.tensor)
            return value.double() if double and value.is_floating_point() else value.clone()

        with torch.no_grad(), _kept_random(state), _kept_buffers(module):
            args, kwargs = tree_map(filled, (self.args, self.kwargs))
            return leaves(module(*args, **kwargs))

    @property
    def small(self) -> bool:
        """Whether a copy in float64 is affordable."""
        return sum(t.numel() for t in [*self.module.parameters(), *self.module.buffers()]) <= LARGEST


def _kept(part: Any) -> Any:
    if isinstance(part, torch.Tensor):
        return _Slot(part)
    return part if isinstance(part, _PLAIN) else copy.deepcopy(part)


def _emptied(part: Any) -> Any:
    return part.tensor if isinstance(part, _Slot) else part


def _like(tensor: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    return tensor.to(model.device, model.dtype)


@contextmanager
def _kept_random(state: torch.Tensor | None) -> Iterator[None]:
    before = torch.get_rng_state()
    if state is not None:
        torch.set_rng_state(state)
    try:
        yield
    finally:
        torch.set_rng_state(before)


@contextmanager
def _kept_buffers(module: nn.Module) -> Iterator[None]:
    slots = [(m._buffers, name, b, b.clone()) for m in module.modules() for name, b in m._buffers.items() if b is not None]
    try:
        yield
    finally:
        for holder, name, buffer, value in slots:
            holder[name] = buffer
            buffer.copy_(value)
