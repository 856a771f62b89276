"""Which steps are recorded: a schedule that is asked for, or as many as the budget pays for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookscope._watch import _pace
from hookscope._watch._pace import ALARM, AT_LEAST, Pace


@dataclass
class Training:
    """Steps of a known length, of which the recorded ones cost more."""

    budget: float = 0.02
    step_ns: float = 1e6
    recorded_ns: float = 2e5  # as our own clock sees it
    always_ns: float = 2e3
    every: int | None = None

    def __post_init__(self) -> None:
        self.now = self.spent = 0.0
        self.pace = Pace(self.every, self.budget, lambda: int(self.spent), clock=lambda: int(self.now))
        self.costs: list[float] = []

    def run(self, first: int, last: int, alarms: tuple[int, ...] = ()) -> list[int]:
        recorded = []
        for step in range(first, last):
            on = self.pace.recorded(step)
            if step in alarms:
                self.pace.alarm(step)
                on = self.pace.recorded(step)
            cost = self.always_ns + (self.recorded_ns if on else 0)
            self.spent += cost
            self.now += self.step_ns + cost
            self.costs.append(cost)
            if on:
                recorded.append(step)
        return recorded


@pytest.fixture
def _no_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pace, "OPENING_S", 0.0)


def test_a_schedule_is_kept_whatever_it_costs() -> None:
    assert Training(every=3, recorded_ns=1e9).run(0, 10) == [0, 3, 6, 9]


def test_the_first_seconds_of_spending_record_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pace, "OPENING_S", 5.0)
    training = Training(recorded_ns=5e7, always_ns=0)
    recorded = training.run(0, 400)
    assert recorded[:100] == [*range(100)]  # 100 steps at 50 ms each are five seconds
    assert len(recorded) < 110


@pytest.mark.usefixtures("_no_opening")
@given(st.floats(0.005, 0.2), st.floats(1e4, 3e6), st.floats(0, 5e3))
def test_any_two_hundred_steps_stay_within_the_budget_and_one_recorded_step(budget: float, recorded_ns: float, always_ns: float) -> None:
    training = Training(budget=budget, recorded_ns=recorded_ns, always_ns=min(always_ns, budget * 1e6 / 2))
    training.run(0, 1500)
    costs = training.costs
    worst = max(sum(costs[i : i + 200]) for i in range(len(costs) - 200))
    assert worst <= budget * 200 * training.step_ns + 2 * (recorded_ns + always_ns)


@pytest.mark.usefixtures("_no_opening")
def test_what_the_budget_pays_for_is_used() -> None:
    training = Training()
    recorded = training.run(0, 4000)
    assert 0.7 < sum(training.costs) * _pace.UNSEEN / (0.02 * training.now) < 1.05
    assert len(recorded) > 200


@pytest.mark.usefixtures("_no_opening")
def test_an_alarm_records_its_step_and_those_that_follow() -> None:
    training = Training()
    recorded = training.run(0, 400, alarms=(203,))
    assert set(range(203, 203 + ALARM)) <= set(recorded)


@pytest.mark.usefixtures("_no_opening")
def test_alarms_at_every_step_do_not_break_the_bank() -> None:
    training = Training()
    recorded = training.run(0, 2000, alarms=tuple(range(2000)))
    assert training.pace.alarms < 10  # heeded at the first, and then after 8, 16, 32, ... steps
    assert len(recorded) < 250


@pytest.mark.usefixtures("_no_opening")
def test_an_alarm_after_a_calm_is_heeded_at_once() -> None:
    training = Training()
    recorded = training.run(0, 900, alarms=(*range(100, 400), 600, 800))
    assert {600, 601, 800, 801} <= set(recorded)


@pytest.mark.usefixtures("_no_opening")
def test_a_step_is_recorded_now_and_then_even_if_the_budget_pays_for_none() -> None:
    recorded = Training(recorded_ns=1e9).run(0, 3 * AT_LEAST)
    assert len(recorded) in (3, 4)


@pytest.mark.usefixtures("_no_opening")
def test_a_part_of_the_budget_is_for_recording_even_where_looking_at_each_step_costs_all_of_it() -> None:
    training = Training(always_ns=5e4)
    recorded = training.run(0, 4000)
    share = len(recorded) * training.recorded_ns * _pace.UNSEEN / training.now
    assert 0.7 * _pace.LEAST * training.budget < share < 1.1 * _pace.LEAST * training.budget


@pytest.mark.usefixtures("_no_opening")
def test_an_answer_once_given_stays() -> None:
    training = Training()
    training.run(0, 50)
    first = [training.pace.recorded(50) for _ in range(3)]
    assert len(set(first)) == 1
    assert training.pace.recorded(51) in (True, False)
    assert training.pace.recorded(50) == first[0]


def resting(training: Training, steps: int, alarms: tuple[int, ...] = ()) -> list[int]:
    """The recorded steps, where the pace is asked for a closer look only if it does not know without one."""
    recorded = []
    for step in range(steps):
        on = not training.pace.rests(step) and training.pace.recorded(step)
        assert training.pace.recorded(step) == on
        if step in alarms:
            training.pace.alarm(step)
            on = training.pace.recorded(step)
        training.spent += training.always_ns + (training.recorded_ns if on else 0)
        training.now += training.step_ns + training.always_ns + (training.recorded_ns if on else 0)
        if on:
            recorded.append(step)
    return recorded


@pytest.mark.usefixtures("_no_opening")
@settings(max_examples=30, deadline=None)
@given(st.sampled_from([0.005, 0.02, 0.1]), st.floats(1e5, 2e6), st.floats(0, 2e4))
def test_resting_changes_no_more_than_when_one_looks_closer(budget: float, recorded_ns: float, always_ns: float) -> None:
    how = {"budget": budget, "recorded_ns": recorded_ns, "always_ns": always_ns}
    steps = 3000
    closely, restful = Training(**how).run(0, steps), resting(Training(**how), steps)
    assert len(restful) == pytest.approx(len(closely), rel=0.1, abs=2)


@pytest.mark.usefixtures("_no_opening")
def test_most_steps_are_known_to_be_left_out_without_a_closer_look(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    decide = Pace._decide
    monkeypatch.setattr(Pace, "_decide", lambda self, step: asked.append(step) or decide(self, step))
    recorded = resting(Training(), 2000)
    assert len(asked) < 3 * len(recorded) < 500


@pytest.mark.usefixtures("_no_opening")
def test_an_alarm_during_a_rest_is_heeded_as_ever() -> None:
    recorded = resting(Training(), 1200, alarms=(1000,))
    assert 1000 not in resting(Training(), 1200)
    assert [step for step in recorded if 1000 <= step < 1000 + ALARM] == [*range(1000, 1000 + ALARM)]


def test_a_schedule_is_known_beforehand() -> None:
    pace = Training(every=3).pace
    assert [pace.rests(step) for step in range(6)] == [False, True, True, False, True, True]
