"""Steps as a table of who attempts when: by hand, without torch."""

import pytest

from hookscope._taps._clock import Clock


def steps_of(clock: Clock, attempts: str) -> list[int]:
    """The step that each attempt is counted into, the way a watch uses the clock; optimizers are letters."""
    counted = []
    for optimizer in map(ord, attempts):
        if clock.is_new_round(optimizer):
            clock.advance()
        clock.attempt(optimizer)
        counted.append(clock.step)
        if clock.complete:
            clock.advance()
    return counted


@pytest.mark.parametrize(
    ("attempts", "steps"),
    [
        ("", []),
        ("aaaa", [0, 1, 2, 3]),
        ("abababab", [0, 0, 1, 1, 2, 2, 3, 3]),
        ("dgdgdg", [0, 0, 1, 1, 2, 2]),
        ("abcabcabc", [0, 0, 0, 1, 1, 1, 2, 2, 2]),
        # one optimizer for the pretraining, another one for what follows
        ("aaabbb", [0, 1, 2, 3, 4, 5]),
        # both from the start, later one of them alone
        ("ababaaa", [0, 0, 1, 1, 2, 3, 4]),
        # five critic steps for each generator step: the generator's shares a step with the critic's next one
        ("cccccgcccccgcccccgc", [0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10, 11, 12, 13, 14, 15, 15]),
        # the order within a round may change
        ("abbaab", [0, 0, 1, 1, 2, 2]),
        # one comes by only now and then
        ("aaabaaa", [0, 1, 2, 3, 3, 4, 5]),
    ],
)
def test_a_step_holds_at_most_one_attempt_of_each_optimizer(attempts: str, steps: list[int]) -> None:
    assert steps_of(Clock(), attempts) == steps


@pytest.mark.parametrize("attempts", ["aaaa", "dgdgdg", "cccccgcccccg", "abbaab", "aabbccab"])
def test_no_step_number_is_left_out_and_none_comes_twice_for_one_optimizer(attempts: str) -> None:
    steps = steps_of(Clock(7), attempts)
    assert sorted(set(steps)) == list(range(7, 7 + len(set(steps))))
    assert steps == sorted(steps)
    assert len(set(zip(attempts, steps, strict=True))) == len(attempts)


def test_a_clock_starts_where_it_is_told_to() -> None:
    assert steps_of(Clock(41), "aa") == [41, 42]


def test_the_first_round_is_complete_only_where_all_optimizers_were_named() -> None:
    unnamed, named = Clock(), Clock(expected=(1, 2))
    for clock in (unnamed, named):
        clock.attempt(1)
    assert (unnamed.complete, named.complete) == (False, False)
    for clock in (unnamed, named):
        clock.attempt(2)
    assert (unnamed.complete, named.complete) == (False, True)


def test_each_round_expects_those_of_the_previous_one() -> None:
    clock = Clock()
    clock.attempt(1)
    clock.advance()
    assert not clock.complete
    assert not clock.is_new_round(1)
    clock.attempt(1)
    assert clock.complete
    assert clock.is_new_round(1)
    assert not clock.is_new_round(2)


def test_a_named_optimizer_that_never_steps_holds_nothing_up() -> None:
    assert steps_of(Clock(expected=map(ord, "ax")), "aaa") == [0, 1, 2]
