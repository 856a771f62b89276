"""When a forward may end early: as soon as nothing that is wanted can still come."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from torch import nn

from ..._core._errors import UsageError
from ..._core._site import Site
from ..._taps._leaves import leaves

Event = Site  # a place that delivers, without the path of a tensor inside


class Enough(BaseException):
    """Ends a forward from within. No `Exception`, so that a model which catches those does not catch this one."""


class Stops:
    """Learns from forwards that ran to their end which events come; `last` is the call up to which each is wanted, None for all;
    `allowed` says whether a forward may end early at all.

    By itself it stops only where no module can come again: where one call of each place is asked for, or where in an earlier batch of the
    same shapes every place came by exactly once. Asked to stop, it takes each place's first call for its only one.
    """

    def __init__(self, last: Mapping[Event, int | None], *, asked: bool, allowed: Callable[[], bool]) -> None:
        self._last, self._asked, self._allowed = last, asked, allowed
        self._known: dict[Hashable, frozenset[Event]] = {}
        self._shape: Hashable = None
        self._waiting: set[Event] | None = None
        self._counts: dict[Event, int] = {}

    def begin(self, batch: Any, *, direct: bool) -> None:
        """A forward over `batch` begins; `direct` if the model itself is called."""
        self._shape = _shape(batch) if self._last and not self._asked and direct else None
        self._counts = {}
        self._waiting = self._expected(direct=direct)

    def _expected(self, *, direct: bool) -> set[Event] | None:
        if not self._last or not (self._asked or direct):
            return None
        if self._asked:
            return set(self._known.get(None, self._last))
        one_call_each = all(last is not None for last in self._last.values())
        known = self._last.keys() if one_call_each else self._known.get(self._shape)
        return set(known) if known is not None and self._allowed() else None

    def came(self, event: Event, call: int) -> bool:
        """Note a delivery; True if it was the last one that is waited for."""
        self._counts[event] = call + 1
        if self._waiting is None or call < (self._last.get(event) or 0):
            return False
        self._waiting.discard(event)
        return not self._waiting

    def ended(self) -> None:
        """The forward ran to its end."""
        if self._asked:
            self._known[None] = frozenset(self._counts) or frozenset(self._last)
        elif self._counts.keys() == self._last.keys() and set(self._counts.values()) == {1}:
            self._known[self._shape] = frozenset(self._counts)


def _shape(batch: Any) -> Hashable:
    """What a forward may depend on in how often it calls its modules: shapes, and whatever is no tensor."""
    parts: Iterable[Any] = batch.items() if isinstance(batch, Mapping) else enumerate(batch) if isinstance(batch, tuple | list) else ()
    plain = tuple((key, value) for key, value in parts if value is None or isinstance(value, bool | int | float | str))
    return (*((path, tuple(t.shape), t.dtype) for path, t in leaves(batch)), *plain)


def check_asked(model: nn.Module, *, grads: bool) -> None:
    """Raises `UsageError` where a forward may not end early, though it is asked for."""
    if grads:
        raise UsageError("stop=True ends the forward early, and gradients need a backward from its end: leave stop out")
    if any(map(_cleans_up, model.modules())):
        raise UsageError(
            "stop=True would leave weights gathered or on the device that are sharded or offloaded between calls: leave stop out"
        )


def may_stop(model: nn.Module) -> bool:
    """Whether a forward of the model can be left half-way without a trace: in training mode random numbers and running statistics would
    be others afterwards.
    """
    return not any(module.training or _cleans_up(module) for module in model.modules())


def _cleans_up(module: nn.Module) -> bool:
    """Whether a wrapper puts weights away after each forward."""
    return "_hf_hook" in vars(module) or any("FSDP" in c.__name__ for c in type(module).__mro__)
