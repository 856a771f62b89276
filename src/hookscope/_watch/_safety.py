"""Nothing that fails inside hookscope reaches the training: the failing part is switched off, once, aloud."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from .._core._errors import HookscopeWarning
from .._record import Sink
from .._taps._modes import unseen
from ._notice import log, warn

# Looked up once: what is asked at each event is asked with cold caches.
_process, _now = os.getpid, time.perf_counter_ns
_is_grad_enabled, _set_grad_enabled, _dispatch_modes = torch.is_grad_enabled, torch._C._set_grad_enabled, torch._C._len_torch_dispatch_stack


class Safety:
    """Runs the parts of a watch (`steps`, `activations`, `rules`, `recording`); `spent` is the nanoseconds they took."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.off: set[str] = set()
        self.spent = 0
        self.step = 0
        self._pid = os.getpid()
        self._level = 0
        self._afterwards: list[Callable[[], None]] = []

    @property
    def elsewhere(self) -> bool:
        """Whether this is a forked child, whose numbers could not reach the run."""
        return os.getpid() != self._pid

    def run(self, part: str, action: Callable[..., None], *args: Any) -> None:
        """Call `action`, unless its part is off."""
        if part in self.off or _process() != self._pid:
            return
        began = _now()
        self._level += 1
        grad = _is_grad_enabled()
        try:
            _set_grad_enabled(False)  # as torch.no_grad does, at a fraction of its price
            if _dispatch_modes():
                with unseen():
                    action(*args)
            else:
                action(*args)
        except Exception as error:
            self.switch_off(part, error)
        finally:
            _set_grad_enabled(grad)
        self._level -= 1
        if not self._level:  # a part may run within another one
            self.spent += _now() - began
            while self._afterwards:
                self._afterwards.pop()()

    def within(self, part: str, action: Callable[..., None], *args: Any) -> None:
        """The same where another part runs already."""
        if part not in self.off:
            try:
                action(*args)
            except Exception as error:
                self.switch_off(part, error)

    def afterwards(self, action: Callable[[], None]) -> None:
        """Call `action` where no part is at work: now, or else as soon as that is so. What it raises is meant to reach the training."""
        if self._level:
            self._afterwards.append(action)
        else:
            action()

    def switch_off(self, part: str, error: Exception) -> None:
        """Do without `part` from now on."""
        if part in self.off:
            return
        self.off.add(part)
        what = f"{type(error).__name__}: {error}"
        log.debug("%s switched off", part, exc_info=error)
        with suppress(Exception):  # where recording itself has failed, the journal may still take a line
            self._write("switched_off", part=part, error=what)
        warn(f"hookscope: {part} is switched off at step {self.step} and the training goes on: {what}", HookscopeWarning)

    def event(self, event: str, **facts: Any) -> None:
        """Note in the run what has happened."""
        if "recording" not in self.off:
            try:
                self._write(event, **facts)
            except Exception as error:
                self.switch_off("recording", error)

    def _write(self, event: str, **facts: Any) -> None:
        if not self.elsewhere:
            self.sink.event({"event": event, "step": self.step, **facts})
