"""Forwards in a file and back: tensors and plain values only, read by torch's safe loader."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_map

from .._taps._leaves import call_leaves
from ._forward import Forward, Randomness


@dataclass(frozen=True, slots=True)
class Batch:
    """What a model was given, `args` and `kwargs` of its call, and `others`: tensors that the program used with what it returned, as
    targets are, in the order of their first use.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    others: tuple[torch.Tensor, ...] = ()


def save_safely(value: Any, path: Path) -> None:
    """Write it, and read it back by the loader that runs no code: whatever that refuses is an error here."""
    torch.save(value, path)
    torch.load(path, weights_only=True, map_location="cpu")


def packed(forwards: Sequence[Forward], others: Sequence[torch.Tensor], names: Mapping[int, str]) -> dict[str, Any]:
    """All of them as one plain value."""
    return {"forwards": [_packed(forward, names) for forward in forwards], "others": [_copy(t) for t in others]}


def size_of(value: Any) -> int:
    """About how many bytes the tensors in it have."""
    found: list[int] = []
    tree_map(lambda t: found.append(t.numel() * t.element_size()) if isinstance(t, torch.Tensor) else None, value)
    return sum(found)


def _packed(forward: Forward, names: Mapping[int, str]) -> dict[str, Any]:
    args, kwargs = tree_map(_copy, (forward.args, forward.kwargs))
    return {
        "module": names.get(id(forward.module), ""),
        "args": tuple(args),
        "kwargs": dict(kwargs),
        "gradients": {i: _copy(gradient) for i, gradient in forward.gradients.items()},
        "autocast": [(device, enabled, str(dtype).removeprefix("torch.")) for device, enabled, dtype in forward.autocast],
        "cache": forward.cache,
        "call": forward.call,
        "fingerprint": [tuple(map(float, row)) for row in forward.fingerprint],
        "random": json.dumps(random_as_json(forward.random)),
        "training": [path for path, module in forward.module.named_modules() if module.training],
        "device": str(next((p.device for p in forward.module.parameters()), "cpu")),
    }


def unpacked(stored: Mapping[str, Any], modules: Mapping[str, nn.Module]) -> list[Forward]:
    """The forwards again, of the modules that are now at those paths; KeyError where there is none."""
    return [_unpacked(one, modules[one["module"]]) for one in stored["forwards"]]


def _unpacked(one: Mapping[str, Any], module: nn.Module) -> Forward:
    args, kwargs = tuple(one["args"]), dict(one["kwargs"])
    tensors = [tensor for _, tensor in call_leaves(args, kwargs)]
    forward = Forward.beginning(module, args, kwargs, tensors, random_from_json(json.loads(one["random"])))
    forward.autocast = tuple((device, enabled, getattr(torch, dtype)) for device, enabled, dtype in one["autocast"])
    forward.cache, forward.call = one["cache"], one["call"]
    forward.fingerprint = [tuple(row) for row in one["fingerprint"]]
    forward.gradients = dict(one["gradients"])
    return forward


def set_modes(stored: Mapping[str, Any], modules: Mapping[str, nn.Module]) -> Callable[[], None]:
    """Put every module into the mode, training or not, that it was in; the returned function undoes that."""
    before = [(inner, inner.training) for one in stored["forwards"] for inner in modules[one["module"]].modules()]
    for one in stored["forwards"]:
        training = set(one["training"])
        for path, inner in modules[one["module"]].named_modules():
            inner.training = path in training

    def undo() -> None:
        for inner, mode in before:
            inner.training = mode

    return undo


def random_as_json(random: Randomness) -> dict[str, Any]:
    """The states as JSON."""
    numpy = random.numpy if isinstance(random.numpy, tuple) else None  # the legacy generator's; another one's is not known here
    return {
        "torch": _text(random.cpu),
        "cuda": [_text(state) for state in random.cuda],
        "python": random.python,
        "numpy": None if numpy is None else [numpy[0], np.asarray(numpy[1]).tolist(), *numpy[2:]],
    }


def random_from_json(found: Mapping[str, Any]) -> Randomness:
    """And back."""
    python, numpy = found["python"], found["numpy"]
    return Randomness(
        _state(found["torch"]),
        tuple(_state(text) for text in found["cuda"]) if torch.cuda.is_available() else (),
        None if python is None else (python[0], tuple(python[1]), python[2]),
        None if numpy is None else (numpy[0], np.array(numpy[1], np.uint32), *numpy[2:]),
    )


def tensors_of(forwards: Iterable[Forward]) -> int:
    """How many bytes the inputs of these forwards have."""
    return sum(size_of((forward.args, forward.kwargs)) for forward in forwards)


def _copy(value: Any) -> Any:
    """A tensor of its own: a view would take its whole storage with it."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad and (value.is_floating_point() or value.is_complex()))


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def _state(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
