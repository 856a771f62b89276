"""One forward of a model as it was called: references and states enough to run it again to the bit."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from .._stats import Row, reduce_into
from ._tape import TAPE_KERNEL

# Looked up once: what is asked at each step is asked with cold caches.
_cpu, _has_cuda = torch.default_generator, torch.cuda._is_compiled()
_is_autocast, _autocast_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
_is_autocast_cached = torch.is_autocast_cache_enabled
SMALL = 64 << 10  # bytes; a larger buffer is copied once it has been seen to change


class Randomness(NamedTuple):
    """The states of the random generators that a forward may draw from."""

    cpu: torch.Tensor
    cuda: tuple[torch.Tensor, ...]
    python: Any = None
    numpy: Any = None

    @classmethod
    def now(cls, *, torch_only: bool = False) -> Randomness:
        """As they are; `torch_only` leaves Python's and numpy's out, which take most of the time."""
        cuda = tuple(torch.cuda.get_rng_state_all()) if _has_cuda and _on_cuda() else ()
        if torch_only:
            return cls(_cpu.get_state(), cuda)
        numpy = sys.modules.get("numpy")
        return cls(torch.get_rng_state(), cuda, random.getstate(), numpy.random.get_state() if numpy else None)

    @property
    def drawn(self) -> bool:
        """Whether Python's or numpy's generator has been asked since."""
        if self.python is not None and random.getstate() != self.python:
            return True
        if self.numpy is None:
            return False
        now = sys.modules["numpy"].random.get_state()
        return bool(now[2:] != self.numpy[2:] or (now[1] != self.numpy[1]).any())

    def restore(self) -> None:
        """Make them so again."""
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(list(self.cuda))
        if self.python is not None:
            random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)


_EXACT = frozenset({torch.int64, torch.int32, torch.bool, torch.float32, torch.float64})  # a number of Python's says the same
_HeldBuffer = tuple[torch.Tensor, int, torch.Tensor | complex | None]  # in which version, and its value


class Buffers:
    """The buffers of a model, copied when they have changed since the last look. By slot: a module may put another tensor in its place.

    `versions` is a number that changes whenever a parameter of the model is written to in place. A batch norm writes to its running
    statistics without telling, and does not look at them while it trains: they are copied only if `silent` changes matter, too.
    """

    def __init__(self, model: nn.Module, *, silent: bool = False) -> None:
        self._silent = silent
        self._parameters = [m._parameters for m in model.modules() if m._parameters]
        self._slots = [(m._buffers, name) for m in model.modules() for name, b in m._buffers.items() if b is not None]
        self._held: list[_HeldBuffer | None] = [None] * len(self._slots)

    def take(self) -> None:
        """Remember their values."""
        for i in range(len(self._slots)) if TAPE_KERNEL is None or self._silent else TAPE_KERNEL.renew(self._slots, self._held):
            holder, name = self._slots[i]
            buffer, held = holder.get(name), self._held[i]
            if buffer is None or buffer.is_inference():
                self._held[i] = None
            elif self._silent or held is None or held[0] is not buffer or held[1] != buffer._version:
                self._held[i] = buffer, buffer._version, self._copy(buffer, held, at_any_rate=self._silent)

    @staticmethod
    def _copy(buffer: torch.Tensor, held: _HeldBuffer | None, *, at_any_rate: bool) -> torch.Tensor | complex | None:
        if (
            type(buffer) is torch.Tensor and buffer.dim() == 0 and buffer.is_cpu and buffer.dtype in _EXACT
        ):  # the counter of a batch norm: a fraction of a copy's price
            return buffer.item()
        if held is None:  # a mask or a table that never changes needs none
            return buffer.detach().clone() if at_any_rate or buffer.numel() * buffer.element_size() <= SMALL else None
        old = held[2]
        return old.copy_(buffer) if isinstance(old, torch.Tensor) and _alike(old, buffer) else buffer.detach().clone()

    @property
    def versions(self) -> int:
        return sum([p._version for holder in self._parameters for p in holder.values() if p is not None])

    def put(self) -> Callable[[], None]:
        """Make the values the remembered ones; the returned function undoes that."""
        now = [(holder, name, holder.get(name)) for holder, name in self._slots]
        values = [None if buffer is None else buffer.detach().clone() for _, _, buffer in now]
        for (holder, name), held in zip(self._slots, self._held, strict=True):
            if held is not None:
                holder[name] = held[0]
                if isinstance(held[2], torch.Tensor):
                    held[0].copy_(held[2])
                elif held[2] is not None:
                    held[0].fill_(held[2])

        def undo() -> None:
            for (holder, name, buffer), value in zip(now, values, strict=True):
                holder[name] = buffer
                if buffer is not None and value is not None:
                    buffer.copy_(value)

        return undo


@dataclass(slots=True)
class Forward:
    """What a replay needs. Tensors are held by reference, with their versions: what is written to in place later is told."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    versions: tuple[tuple[torch.Tensor, int], ...]
    random: Randomness
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    cache: bool
    parameters: int | None = None  # the sum of their versions, if it is known
    compiled: bool = False  # something in the process is
    call: int = 0  # how many forwards of the module came before it since the last backward
    fingerprint: list[tuple[float, ...]] = field(default_factory=list)
    gradients: dict[int, torch.Tensor] = field(default_factory=dict)  # as they arrived at the outputs

    @classmethod
    def beginning(
        cls, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[torch.Tensor], random: Randomness
    ) -> Forward:
        """A forward of `module` that is about to run, on arguments in which there are these tensors."""
        if len(tensors) == 1 and not tensors[0].is_inference():  # as most often
            versions: tuple[tuple[torch.Tensor, int], ...] = ((tensors[0], tensors[0]._version),)
        else:
            versions = tuple([(t, t._version) for t in tensors if not t.is_inference()])
        autocast = (("cpu", _is_autocast("cpu"), _autocast_dtype("cpu")),)
        if random.cuda:
            autocast += (("cuda", _is_autocast("cuda"), _autocast_dtype("cuda")),)  # type: ignore[assignment]  # one, or both
        return cls(module, args, kwargs, versions, random, autocast, _is_autocast_cached())


def fingerprint(tensor: torch.Tensor, row: Row) -> tuple[float, ...]:
    """Numbers that two runs have in common only if they gave the same: `row` is scratch space on the tensor's device."""
    return tuple(row.view[0].tolist()) if reduce_into(row, tensor) else ()


def traceable_keeper(gradients: dict[int, torch.Tensor], key: int) -> Callable[[torch.Tensor | None], None]:
    def keep(gradient: torch.Tensor | None) -> None:
        if gradient is not None:
            gradients[key] = gradient

    return keep


# A function of a gradient that keeps it, if there is one, under a key.
keeper: Callable[[dict[int, torch.Tensor], int], Callable[[torch.Tensor | None], None]]
keeper = traceable_keeper if TAPE_KERNEL is None else TAPE_KERNEL.keeper


def _on_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch leaves it unannotated


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and a.stride() == b.stride()
