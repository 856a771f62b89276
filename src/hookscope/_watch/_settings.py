"""What a watch was asked for, checked."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .._core._errors import UsageError
from .._core._finding import Finding
from .._core._select import Selection
from ._nonfinite import ANSWERS, OnNonfinite

Reduce = Literal["step"] | None
OnFinding = Literal["warn", "raise", "ignore"] | Callable[[Finding], Any]
Updates = Literal["sample", "full"]
Kept = Literal["facts", "batch", "full", "off"]
_ON_FINDING = ("warn", "raise", "ignore")


@dataclass(frozen=True, slots=True)
class Settings:
    """See `watch` for what each of them means."""

    selection: Selection
    every: int | None = None
    on_finding: OnFinding = "warn"
    updates: Updates = "sample"
    grad_norm_threshold: float | None = None
    on_nonfinite: OnNonfinite = "report"
    budget: float = 0.02
    flight: int = 32
    incidents: Kept = "facts"
    reduce: Reduce = None
    exact: bool = False

    @property
    def waits(self) -> bool:
        """Whether each step is to be judged before its end, also where a device has to be waited for."""
        return self.exact or self.on_finding == "raise"

    def __post_init__(self) -> None:
        if self.every is not None and (isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1):
            raise UsageError(f"every={self.every!r} is no schedule: give a whole number of steps, 1 or more, or None to keep to the budget")
        if isinstance(self.budget, bool) or not isinstance(self.budget, (int, float)) or not 0 < self.budget <= 1:
            raise UsageError(f"budget={self.budget!r} is no share of a training's time: give a number above 0, at most 1; 0.02 is 2 %")
        if not callable(self.on_finding):
            _one_of("on_finding", self.on_finding, _ON_FINDING, " or a function that takes a Finding")
        if not callable(self.on_nonfinite):
            _one_of("on_nonfinite", self.on_nonfinite, ANSWERS, " or a function that takes the findings and returns one of these")
        _one_of("updates", self.updates, get_args(Updates))
        _one_of("incidents", self.incidents, get_args(Kept))
        if self.reduce not in (None, "step"):
            raise UsageError(f"reduce={self.reduce!r} is unknown: give 'step' to judge what all ranks see, or None for each rank by itself")
        if isinstance(self.flight, bool) or not isinstance(self.flight, int) or self.flight < 0:
            raise UsageError(f"flight={self.flight!r} is no number of frames: give how many of the last steps to keep at hand, 0 for none")
        limit = self.grad_norm_threshold
        if limit is not None and not (isinstance(limit, (int, float)) and limit > 0):
            raise UsageError(f"grad_norm_threshold={limit!r} is no limit: give a norm above 0, or None for no fixed limit")


def _one_of(name: str, value: Any, valid: tuple[str, ...], more: str = "") -> None:
    if value not in valid:
        near = difflib.get_close_matches(str(value), valid, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"{name}={value!r} is unknown: {hint}choose one of {', '.join(map(repr, valid))}{more}")
