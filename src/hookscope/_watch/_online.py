"""The rules, live: a cheap look at every frame decides when they run; each finding is reported once."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core._finding import Finding
from .._core._frame import Frame
from .._core._site import Site
from .._record import MemoryWriter, Meta
from .._rules import diagnose
from .._rules._leap import LASTING
from ._settings import Settings
from ._together import Alone, Together

HEAD, TAIL = 16, 240  # frames kept for the rules: the first ones, for what is judged against the start, and the latest
CALM = 10  # steps between two judgements that magnitudes, not NaN or Inf, have asked for
JUMP = 4.0  # a global gradient norm this many times its usual one, or a loss this many times its first, asks for a judgement
_TIMES = frozenset((1, 5, 10, 20, 50, 100, 200, 500))


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Which sites are what, by their ids."""

    gradient: NDArray[np.bool_]  # of a parameter, as the optimizer uses it
    loss: NDArray[np.bool_]
    skipped: NDArray[np.bool_]

    @classmethod
    def of(cls, sites: Sequence[Site]) -> _Kinds:
        return cls(
            np.array([site.kind == "param_grad" and not site.label for site in sites], bool),
            np.array([site.kind == "loss" for site in sites], bool),
            np.array([site.kind == "scalar" and site.path == "skipped" for site in sites], bool),
        )

    def bad(self, frame: Frame) -> set[tuple[bool, int]]:
        """The sites where something is not finite, each with whether the step was skipped: a scaler's first overflows are no news later."""
        bad = frame.stats[:, 1:3].any(axis=1)
        if not bad.any():
            return set()
        skipped = bool(self.skipped[frame.site].any())
        return {(skipped, site) for site in frame.site[bad].tolist()}


class Online:
    """`see` takes each frame as it is closed, `suspect` looks at one that is still open; both return findings not reported before."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.together: Alone | Together = Alone()
        self.findings: list[Finding] = []
        self.origins: list[dict[str, Any]] = []  # events that name the operation at which something went bad
        self._head: list[Frame] = []
        self._tail: deque[Frame] = deque(maxlen=TAIL)
        self._seen: set[tuple[str, str | None, str]] = set()
        self._norms: deque[float] = deque(maxlen=200)
        self._first_loss: float | None = None
        self._frames = self._bad_frames = 0
        self._bad_sites: set[tuple[bool, int]] = set()
        self._kinds = _Kinds.of(())
        self._judged = -CALM
        self._events = 0
        self._due: set[int] = set()  # numbers of frames at which it is told whether what leapt stays so

    def see(self, frame: Frame, sites: Sequence[Site]) -> list[Finding]:
        """Take a closed frame; where ranks speak to each other, what is judged is that of all ranks at the step before."""
        return [finding for one in self.together.frames(frame, sites) for finding in self._take(one, sites)]

    def end(self, status: str, sites: Sequence[Site]) -> list[Finding]:
        """The training is over: take what ranks have still to tell each other, unless this one has failed."""
        last = self.together.last() if status == "finished" else []
        self.together.close()
        return [finding for one in last for finding in self._take(one, sites)]

    def _take(self, frame: Frame, sites: Sequence[Site]) -> list[Finding]:
        self._frames += 1
        if len(self._head) < HEAD:
            self._head.append(frame)
        else:
            self._tail.append(frame)
        if not self._asks_for_judgement(frame, sites):
            return []
        return self._judge([*self._head, *self._tail], sites)

    def suspect(self, frame: Frame, sites: Sequence[Site]) -> list[Finding]:
        """Look at a frame whose step has not changed the parameters yet; of a rank that does not judge by itself alone, not at all."""
        if self.together.active:
            return []
        bad = self._known(sites).bad(frame)
        return self._judge([*self._head, *self._tail, frame], sites) if self._is_news(bad) else []

    def _known(self, sites: Sequence[Site]) -> _Kinds:
        if len(self._kinds.loss) != len(sites):
            self._kinds = _Kinds.of(sites)
        return self._kinds

    def _is_news(self, bad: set[tuple[bool, int]]) -> bool:
        """A site that was never bad before is judged at once; a model full of NaN, or of masks, at its 1st, 2nd, 4th, ... bad frame."""
        return bool(bad) and (not bad <= self._bad_sites or (self._bad_frames + 1) & self._bad_frames == 0)

    def _asks_for_judgement(self, frame: Frame, sites: Sequence[Site]) -> bool:
        kinds = self._known(sites)
        if bad := kinds.bad(frame):
            news = self._is_news(bad)
            self._bad_frames += 1
            self._bad_sites |= bad
            if news:
                return True
        if self._heard() or self._frames in _TIMES or self._frames % 1000 == 0:
            return True
        if self._jumped(frame, kinds) and self._frames - self._judged >= CALM:
            self._judged = self._frames
            return True
        return False

    def _heard(self) -> bool:
        """Whether an event has come in that has not been judged yet, or a leap is to be judged once more."""
        if len(self.origins) > self._events:
            self._events = len(self.origins)
            self._due = {self._frames + 2, self._frames + LASTING + 1}
            return True
        return self._frames in self._due

    def _jumped(self, frame: Frame, kinds: _Kinds) -> bool:
        norm = math.sqrt(float(frame.stats[kinds.gradient[frame.site], 5].sum()))
        losses = frame.stats[kinds.loss[frame.site]]
        loss = float(losses[:, 4].sum() / max(1.0, losses[:, 0].sum())) if len(losses) else None
        if self._first_loss is None:
            self._first_loss = loss
        usual = median(self._norms) if self._norms else norm
        jumped = norm > JUMP * usual or (loss is not None and self._first_loss is not None and loss > JUMP * abs(self._first_loss))
        limit = self.settings.grad_norm_threshold
        self._norms.append(norm)
        return jumped or (limit is not None and norm > limit)

    def _judge(self, frames: list[Frame], sites: Sequence[Site]) -> list[Finding]:
        memory = MemoryWriter(Meta(every=self.settings.every or 1))
        memory.sites(sites)
        for frame in frames:
            memory.frame(frame)
        for origin in self.origins:
            memory.event(origin)
        found = diagnose(memory.run, grad_norm_threshold=self.settings.grad_norm_threshold)
        return list(self._fresh(found))

    def _fresh(self, found: Iterable[Finding]) -> Iterator[Finding]:
        for finding in found:
            key = finding.rule, finding.module, finding.severity
            known = key in self._seen or (finding.severity == "warning" and (*key[:2], "error") in self._seen)  # milder than was told
            if not known:
                self._seen.add(key)
                self.findings.append(finding)
                yield finding
