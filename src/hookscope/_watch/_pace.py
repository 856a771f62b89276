"""Which steps are recorded in full: all of them while that costs little, and later as many as the budget pays for."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable

OPENING_S = 5.0  # what a watch may spend before it begins to save: a training of a minute or two is recorded step by step
UNSEEN = 1.3  # the whole cost of a recorded step, over what our own clock sees of it: torch calls the hooks, the caches are cold after them
ALARM = 8  # steps recorded in full after an alarm, the one that gave it included
DEBT = 4  # recorded steps that alarms may be ahead of the budget
AT_LEAST = 1000  # steps, at most, without a recorded one, however small the budget
LEAST = 0.25  # of the budget is for recording steps, even where to look at each of them costs more than all of it
SMOOTH = 0.2
TOGETHER = 64  # steps that many ranks record at the beginning
SHARE = 0.32  # of a step's time, what recording it is taken to cost where ranks must agree without measuring it


class Pace:
    """`every` is a fixed schedule; None leaves it to the `budget`, a share of the training's time.

    Of several `ranks` each measures other times: there the schedule is one of step numbers alone, the same on all of them. An alarm is
    what a rank itself has seen.

    `spent` tells the nanoseconds spent so far. Once a step has been asked about, the answer stays, unless an `alarm` makes it yes.
    After the opening, what is recorded for no alarm costs at most `budget` of any stretch of time, and one recorded step; what it costs to
    look at each step comes out of the budget, too, but for a part of it.
    """

    def __init__(
        self,
        every: int | None,
        budget: float,
        spent: Callable[[], int],
        *,
        ranks: int = 1,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.every = every
        self.budget = budget
        self.spent = spent
        self.clock = clock
        self.together = every is None and ranks > 1
        self.alarms = 0
        self._answers: dict[int, bool] = {}
        self._until = -1  # the last step that an alarm has asked for
        self._heeds: defaultdict[str, _Heed] = defaultdict(_Heed)  # by cause
        self._asked: tuple[int, int] | None = None  # time and spending at the latest question
        self._credit = 0.0  # nanoseconds that may be spent
        self._price = 0.0  # of recording a step
        self._always = 0.0  # what a step costs that is not recorded
        self._recorded = 0  # the latest recorded step
        self._step = 0  # of the latest question
        self._rest = 0  # a time before which no step can be paid for
        self._rested = range(0)  # the latest steps that were left out for it

    def recorded(self, step: int) -> bool:
        """Whether this step is recorded in full."""
        if self.every is not None:
            return step % self.every == 0
        answer = self._answers.get(step)
        if answer is None and step in self._rested:
            return False
        if answer is None:
            answer = self._decide(step)
            self._answers = {s: a for s, a in self._answers.items() if s >= step - 2}
            self._answers[step] = answer
            if answer:
                self._recorded = step
        return answer

    def rests(self, step: int) -> bool:
        """Whether it takes no closer look to know that this step, the next one, is not recorded."""
        if self.every is not None:
            return step % self.every != 0
        if step - self._recorded >= AT_LEAST or self._rest <= self.clock() or step in self._answers:
            return False
        if step not in self._rested:
            start = self._rested.start if self._rested.stop == step else step
            self._rested = range(start, step + 1)
        return True

    def scheduled(self, step: int) -> bool:
        """Whether all ranks record this step, each by itself and whatever it sees."""
        return step % (self.every if self.every is not None else interval(step, self.budget)) == 0

    @property
    def saves(self) -> bool:
        """Whether the opening is over, and steps are left out."""
        return self.every is None and self.spent() >= OPENING_S * 1e9

    @property
    def affords(self) -> bool:
        """Whether an evaluation may be read now."""
        return not self.saves or self._credit >= 0

    def alarm(self, step: int, causes: Iterable[str] = ("",)) -> None:
        """Something is wrong in this step: record it as far as still possible, and those that follow, unless debts are large. No fixed
        schedule is changed by it.

        What stays wrong from step to step for the same cause is heeded after twice as long each time; that hides no other cause.
        """
        heeded = [cause for cause in causes if self._heeds[cause].heeds(step)]
        if self.every is not None or not heeded:
            return
        if not self.recorded(step):
            self.alarms += 1
            self._answers[step] = True
            self._rest = 0
            if self.alarms <= TOGETHER if self.together else self._credit >= -DEBT * self._price:
                self._until = step + ALARM - 1

    def _decide(self, step: int) -> bool:
        self._account(step)
        if self.together:
            return step <= self._until or step % interval(step, self.budget) == 0
        if not self.saves or step <= self._until or step - self._recorded >= AT_LEAST:
            return True
        lacking = self._price - self._credit
        if lacking > 0 and self.budget > 0:
            self._rest = self.clock() + int(lacking / self.budget)
        return lacking <= 0

    def _account(self, step: int) -> None:
        now, spent = self.clock(), self.spent()
        steps, self._step, self._rest = max(1, step - self._step), step, 0
        if self._asked is not None:
            passed, used = now - self._asked[0], float(spent - self._asked[1])
            recorded = bool(self._answers) and self._answers[max(self._answers)]
            if recorded:
                used = UNSEEN * max(0.0, used - steps * self._always)
                self._price = _smoothed(self._price, used)
            else:
                self._always, used = _smoothed(self._always, used / steps), 0.0
            earned = max(self.budget * passed - steps * self._always, LEAST * self.budget * passed)
            if self.saves:
                self._credit = min(self._credit + earned - used, self._price)
        self._asked = now, spent


class _Heed:
    """Alarms for one cause."""

    def __init__(self) -> None:
        self._alarmed = self._next = -2  # when the latest was given; from when on one that lasts is heeded again
        self._deaf = ALARM  # steps for which it is not

    def heeds(self, step: int) -> bool:
        lasting, self._alarmed = step - self._alarmed <= 1, step
        if step < self._next and lasting:
            return False
        self._deaf = 2 * self._deaf if lasting else ALARM
        self._next = step + self._deaf
        return True


def _smoothed(before: float, now: float) -> float:
    return now if not before else (1 - SMOOTH) * before + SMOOTH * now


def interval(step: int, budget: float) -> int:
    """Of many ranks: every step of the first 64, then each n-th so that a recorded one costs the budget, later one in four of these.

    >>> [interval(step, 0.02) for step in (10, 100, 2000)]
    [1, 16, 64]
    """
    usual = min(max(1, round(SHARE / budget)), AT_LEAST) if budget > 0 else AT_LEAST
    return 1 if step < TOGETHER else usual if step < TOGETHER * usual else min(4 * usual, AT_LEAST)


def ranks_of(sink: object) -> int:
    """How many ranks record into the same run."""
    return int(getattr(getattr(sink, "meta", None), "world_size", 1))
