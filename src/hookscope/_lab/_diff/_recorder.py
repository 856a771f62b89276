"""Runs one side and writes its book, tensors into the store: one call's tensors are in memory at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from ..._core._errors import UsageError
from ..._origin._forward import Randomness
from ..._taps._inventory import parameters
from ..._taps._leaves import call_leaves, leaves
from ._book import Book, Called, Key
from ._describe import described, facts, prints
from ._listen import Heard, listening
from ._prints import Print
from ._running import Side, untouched
from ._store import Store

Wanted = Callable[[str], bool]


@dataclass(slots=True)
class Recorder:
    """Writes each call down as it ends. `wanted` says of which modules the full tensors are kept."""

    store: Store
    wanted: Wanted
    calls: dict[Key, Called] = field(default_factory=dict)
    grads: dict[tuple[Key, int], Print] = field(default_factory=dict)
    deaf: bool = False

    def entering(self, heard: Heard) -> None:
        keep = self.wanted(heard.path)
        inputs = tuple(self.store.put(t, path, keep=keep) for path, t in call_leaves(heard.args, heard.kwargs))
        heard.note = inputs, self.store.put(torch.get_rng_state(), keep=keep)

    def leaving(self, heard: Heard, output: Any) -> None:
        inputs, state = heard.note
        key, keep = (heard.path, heard.call), self.wanted(heard.path)
        outputs = tuple(self.store.put(t, path, keep=keep) for path, t in leaves(output))
        self.calls[key] = Called(heard.path, heard.call, inputs, outputs, heard.entered, heard.left, heard.inside, state)
        on_gradients(key, output, self._gradient)

    def _gradient(self, key: Key, index: int, path: str, grad: torch.Tensor) -> None:
        self.grads[key, index] = self.store.put(grad, path, keep=self.wanted(key[0]))

    def with_grads(self) -> dict[Key, Called]:
        """The calls with the gradients that have arrived at their outputs."""
        return {
            key: replace(call, grads=tuple(g for i in range(len(call.outputs)) if (g := self.grads.get((key, i))) is not None))
            for key, call in self.calls.items()
        }


def on_gradients(key: Key, output: Any, told: Callable[[Key, int, str, torch.Tensor], None]) -> None:
    """Call `told` with the gradient of each tensor in `output` when it arrives."""
    for index, (path, tensor) in enumerate(leaves(output)):
        if tensor.requires_grad and tensor.grad_fn is not None:
            tensor.register_hook(partial(_arrived, told, (key, index, path)))  # type: ignore[no-untyped-call]  # torch leaves it unannotated


def _arrived(told: Callable[[Key, int, str, torch.Tensor], None], where: tuple[Key, int, str], grad: torch.Tensor) -> None:
    told(*where, grad)


def record(side: Side, store: Store, randomness: Randomness, *, wanted: Wanted = lambda _: True) -> Book:
    """Run the side once; its book."""
    model, recorder = side.inner, Recorder(store, wanted)
    with untouched(model, randomness):
        facts_, modules = facts(side), described(model)
        values = prints(model, "parameters"), prints(model, "buffers")
        with listening(model, recorder):
            result = side.run()
            grads = {name: store.put(grad, keep=wanted(name.rpartition(".")[0])) for name, grad in gradients(side, result).items()}
    return Book(recorder.with_grads(), modules, *values, grads, facts_)


def gradients(side: Side, loss: Any) -> dict[str, torch.Tensor]:
    """The gradients of the side's loss by parameter name, under every name of a tied one; nothing is written into `.grad`."""
    if side.loss_fn is None:
        return {}
    if not isinstance(loss, torch.Tensor) or loss.grad_fn is None:
        kind = type(loss).__name__
        raise UsageError(f"loss_fn returned a {kind} for {side.name} that has no gradient: return the loss of the batch as a tensor")
    wanted = [named for named in parameters(side.inner) if named.parameter.requires_grad]
    found = torch.autograd.grad(loss.sum(), [named.parameter for named in wanted], allow_unused=True)
    pairs = [(named, grad) for named, grad in zip(wanted, found, strict=True) if grad is not None]
    return {name: grad for named, grad in pairs for name in (named.path, *named.aliases)}
