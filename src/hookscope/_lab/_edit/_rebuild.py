"""A structure with some of its tensors replaced; everything else in it, and its types, stay. The original is not written to."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from ..._taps._leaves import MAX_DEPTH


def rebuilt(value: Any, new: Mapping[str, torch.Tensor], path: str = "", depth: int = 0) -> Any:  # noqa: PLR0911  # a kind of structure each
    """`value` with the tensors at the paths in `new`, written as `_taps._leaves` writes them.

    >>> rebuilt(("a", [1, torch.zeros(())]), {"[1][1]": torch.ones(())})
    ('a', [1, tensor(1.)])
    """
    if isinstance(value, torch.Tensor):
        return new.get(path, value)
    if depth == MAX_DEPTH or not any(key.startswith(path) for key in new):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # namedtuple, PackedSequence
        parts = [rebuilt(getattr(value, name), new, f"{path}.{name}", depth + 1) for name in value._fields]
        return tuple.__new__(type(value), parts)
    if isinstance(value, tuple | list):
        return _sequence(value, [rebuilt(part, new, f"{path}[{i}]", depth + 1) for i, part in enumerate(value)])
    if dataclasses.is_dataclass(value):  # before Mapping: a ModelOutput is both
        fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
        return _dataclass(value, {n: (part, rebuilt(part, new, f"{path}.{n}", depth + 1)) for n, part in fields.items()})
    if isinstance(value, Mapping):
        steps = {key: f'["{key}"]' if isinstance(key, str) else f"[{key!r}]" for key in value}
        return _mapping(value, {key: rebuilt(value[key], new, path + step, depth + 1) for key, step in steps.items()})
    return value


def _sequence(value: Any, parts: list[Any]) -> Any:
    if type(value) in (tuple, list):
        return type(value)(parts)
    if isinstance(value, list):
        shallow = copy.copy(value)
        shallow[:] = parts
        return shallow
    return type(value)(parts) if hasattr(type(value), "n_sequence_fields") else tuple.__new__(type(value), parts)  # torch.return_types


def _dataclass(value: Any, fields: dict[str, tuple[Any, Any]]) -> Any:
    shallow = copy.copy(value)
    for name, (old, new) in fields.items():
        if new is not old:
            if isinstance(shallow, Mapping):
                shallow[name] = new  # type: ignore[index]  # a ModelOutput sets its attribute, too
            else:
                object.__setattr__(shallow, name, new)
    return shallow


def _mapping(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if type(value) is dict:
        return items
    shallow: Any = copy.copy(value)
    for key, item in items.items():
        if item is not value[key]:
            shallow[key] = item
    return shallow
