"""What is known of one side: every call of every module by the fingerprints of what went in and came out, and the model's own facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ._prints import Print, print_from_json

Key = tuple[str, int]  # a module's path and which of its calls


@dataclass(frozen=True, slots=True)
class Called:
    """One call. `entered` and `left` count entries and exits of all calls; `inside` is how many calls lie within; `state` is the state of
    torch's CPU generator at entry. `grads` are the gradients at the outputs, where a loss was differentiated.
    """

    path: str
    call: int
    inputs: tuple[Print, ...]
    outputs: tuple[Print, ...]
    entered: int
    left: int
    inside: int
    state: Print | None = None
    grads: tuple[Print, ...] = ()

    @property
    def key(self) -> Key:
        return self.path, self.call


@dataclass(frozen=True, slots=True)
class Described:
    """A module without its tensors: class names, most derived first, and its simple attributes (`eps`, `p`, `training`)."""

    path: str
    bases: tuple[str, ...]
    attributes: Mapping[str, Any]
    leaf: bool

    @property
    def name(self) -> str:
        return self.bases[0].rsplit(".", 1)[-1]


@dataclass(frozen=True, slots=True)
class Book:
    """`calls` in order of completion; `parameters`, `buffers` and `grads` by name."""

    calls: Mapping[Key, Called]
    modules: Mapping[str, Described]
    parameters: Mapping[str, Print]
    buffers: Mapping[str, Print]
    grads: Mapping[str, Print] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fired(self) -> tuple[str, ...]:
        """The paths of the modules that were called, in order of first completion."""
        return tuple(dict.fromkeys(path for path, _ in self.calls))

    def as_json(self) -> dict[str, Any]:
        """Everything, in JSON's types."""
        tables = ("parameters", "buffers", "grads")
        return {
            "facts": dict(self.facts),
            "modules": [{**asdict(m), "attributes": dict(m.attributes)} for m in self.modules.values()],
            "calls": [_call_json(call) for call in self.calls.values()],
            **{table: {name: found.as_json() for name, found in getattr(self, table).items()} for table in tables},
        }


def book_from_json(found: Mapping[str, Any]) -> Book:
    """The book that `as_json` wrote."""
    calls = [_call_from_json(call) for call in found["calls"]]
    modules = [Described(m["path"], tuple(m["bases"]), _tuples(m["attributes"]), m["leaf"]) for m in found["modules"]]
    parameters, buffers, grads = (
        {name: print_from_json(p) for name, p in found[table].items()} for table in ("parameters", "buffers", "grads")
    )
    return Book({call.key: call for call in calls}, {m.path: m for m in modules}, parameters, buffers, grads, found["facts"])


def _tuples(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in attributes.items()}


def _call_json(call: Called) -> dict[str, Any]:
    prints = {name: [p.as_json() for p in getattr(call, name)] for name in ("inputs", "outputs", "grads")}
    numbers = {name: getattr(call, name) for name in ("path", "call", "entered", "left", "inside")}
    return {**numbers, **prints, "state": None if call.state is None else call.state.as_json()}


def _call_from_json(found: Mapping[str, Any]) -> Called:
    prints = {name: tuple(map(print_from_json, found[name])) for name in ("inputs", "outputs", "grads")}
    state = None if found["state"] is None else print_from_json(found["state"])
    return Called(**{**found, **prints, "state": state})
