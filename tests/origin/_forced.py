"""Makes a watch believe that something has gone bad, so that it runs healthy backwards again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import hookscope as hs
from hookscope._origin._replay import Replay, replay
from hookscope._watch import _locating

from ..watch._programs import Training


class Forced:
    """`backwards` counts them; `found` holds what each replay has shown."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, every: int = 5) -> None:
        self.every = every
        self.backwards = 0
        self.found: list[Replay] = []
        self.patch = monkeypatch

    @contextmanager
    def observer(self, training: Training) -> Iterator[None]:
        with hs.watch(training.model, training.optimizers, on_finding="ignore") as w:
            locator = w._session.locator
            self.patch.setattr(_locating, "really_bad", lambda rows: self._bad(locator, len(rows)))
            self.patch.setattr(_locating, "replay", self._replay)
            yield
        assert [event for event in w.run.events if event["event"] == "switched_off"] == []

    def _bad(self, locator: _locating.Locator, rows: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        locator._bad = 0  # or only the 1st, 2nd, 4th, ... would be looked at
        self.backwards += 1
        return np.full(rows, self.backwards % self.every == 0)

    def _replay(self, *args: Any) -> Replay:
        self.found.append(replay(*args))
        return self.found[-1]
