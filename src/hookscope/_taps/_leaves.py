"""The tensors inside what a module takes or returns, each with the path that leads to it.

Paths are written as one would write them in Python behind the value: `[1][0]`, `.last_hidden_state`, `["mask"]`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

MAX_DEPTH = 8
MAX_LEAVES = 256  # a cache or a list of thousands of boxes must not turn one hook into a thousand


def leaves(value: Any) -> list[tuple[str, torch.Tensor]]:
    """All tensors in `value`, in order, at most `MAX_LEAVES` of them and `MAX_DEPTH` deep."""
    if isinstance(value, torch.Tensor):
        return [("", value)]
    found: list[tuple[str, torch.Tensor]] = []
    if type(value) is tuple and all(
        part is None or isinstance(part, torch.Tensor) for part in value
    ):  # most often, and at a tenth of the price
        return [(f"[{i}]", part) for i, part in enumerate(value[:MAX_LEAVES]) if part is not None]
    for leaf in _walk(value, "", 0):
        found.append(leaf)
        if len(found) == MAX_LEAVES:
            break
    return found


def call_leaves(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """The tensors among a call's arguments: `[0]` for the first one, `.mask` for a keyword; `""` if there is only one."""
    if len(args) == 1 and not kwargs:
        return leaves(args[0])
    named = leaves(args) + [("." + key + path, tensor) for key, value in kwargs.items() for path, tensor in leaves(value)]
    return named[:MAX_LEAVES]


def tensors(value: Any) -> list[torch.Tensor]:
    """The same without their paths."""
    return [value] if type(value) is torch.Tensor else [tensor for _, tensor in leaves(value)]


def call_tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors among a call's arguments, without their paths."""
    if len(args) == 1 and not kwargs:
        return tensors(args[0])
    return [tensor for _, tensor in call_leaves(args, kwargs)]


def _walk(value: Any, path: str, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth < MAX_DEPTH:
        for step, part in _parts(value):
            yield from _walk(part, path + step, depth + 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # namedtuple, PackedSequence
        yield from ((f".{name}", getattr(value, name)) for name in value._fields)
    elif isinstance(value, (tuple, list)):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):  # before Mapping: a ModelOutput is both
        yield from ((f".{f.name}", getattr(value, f.name, None)) for f in dataclasses.fields(value))
    elif isinstance(value, Mapping):
        yield from ((f'["{key}"]' if isinstance(key, str) else f"[{key!r}]", part) for key, part in value.items())
