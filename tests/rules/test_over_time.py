"""The rules on size over time, on runs written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hookscope import diagnose
from hookscope._core._finding import Diagnosis

from ._book import NAN, Book

MLP = {"a": "Linear", "b": "Linear", "": "Sequential"}
WAVE = np.array([-1.0, -0.5, 0.25, 1.0])


def told(norms: Sequence[float], losses: Sequence[float] | None = None, more: dict[str, Any] | None = None) -> Diagnosis:
    """A run whose gradients have these sizes; `b` has the tenth of `a`'s."""
    book = Book(MLP)
    for step, norm in enumerate(norms):
        loss = [1.0 if losses is None else losses[step]]
        changes = {"a.weight:param_grad": norm * WAVE, "b.weight:param_grad": 0.1 * norm * WAVE, "loss:loss": loss}
        book.step(step, changes | (more or {}))
    return diagnose(book.run)


def heavy_tailed(steps: int, seed: int = 0) -> list[float]:
    """exp of 0.3 * Student-t with 4 degrees of freedom: the `cnn` regime."""
    return np.exp(0.3 * np.random.default_rng(seed).standard_t(4, steps)).tolist()


def test_a_heavy_tailed_gradient_norm_is_sound_for_two_thousand_steps() -> None:
    assert told(heavy_tailed(2000)).findings == ()


def test_a_norm_that_doubles_every_step_is_a_runaway_within_ten_steps() -> None:
    found = told([*heavy_tailed(300), *(2.0**i for i in range(1, 15))]).findings[0]
    assert (found.rule, found.severity, found.where) == ("grad-runaway", "warning", "optimizer")
    assert 300 <= found.first_step <= 310


def test_a_runaway_that_the_loss_follows_is_an_error() -> None:
    found = told([*heavy_tailed(300), *(2.0**i for i in range(1, 15))], [1.0] * 300 + [1.0 + i for i in range(14)]).findings[0]
    assert (found.severity, found.evidence["loss_followed"]) == ("error", True)


def test_a_single_hard_batch_is_no_runaway() -> None:
    assert told([*heavy_tailed(300), 20.0, *heavy_tailed(50, 1)]).findings == ()


def test_the_first_two_hundred_steps_raise_no_alarm_of_this_kind() -> None:
    assert told([*heavy_tailed(100), *[40.0] * 10, *heavy_tailed(20, 1)]).findings == ()


def test_rare_rewards_with_zero_gradients_in_between_are_sound() -> None:
    norms = np.where(np.arange(600) % 10 == 0, heavy_tailed(600), 0.0).tolist()
    assert told(norms, [0.0 if n == 0 else 0.1 for n in norms]).findings == ()


def test_an_early_blow_up_that_ends_in_nan_explains_the_nan() -> None:
    book = Book(MLP)
    for step in range(8):
        size = 10.0**step
        book.step(step, {"a.weight:param_grad": size * WAVE, "b.weight:param_grad": size * WAVE, "loss:loss": [size]})
    book.step(8, {"a:output": [NAN], ":output": [NAN], "loss:loss": [NAN], "a.weight:param_grad": [NAN], "b.weight:param_grad": [NAN]})
    diagnosis = diagnose(book.run)
    assert [(f.rule, f.severity) for f in diagnosis] == [("grad-runaway", "error"), ("nonfinite-forward", "error")]
    assert diagnosis.findings[0].explains == (1,)
    assert diagnosis.findings[0].first_step == 1


def test_large_but_falling_norms_are_sound() -> None:
    assert told([1e5 * 0.9**i for i in range(100)], [1e6 * 0.9**i for i in range(100)]).findings == ()


def test_a_loss_that_stays_above_three_times_its_start_under_large_gradients_has_diverged() -> None:
    found = told([1.0] * 30 + [50.0] * 40, [2.0] * 30 + [9.0] * 40).findings[0]
    assert (found.rule, found.first_step) == ("grad-runaway", 30)
    assert "diverged" in found.message


def test_a_sound_training_that_turns_nan_from_one_step_to_the_next_has_not_diverged() -> None:
    assert [f.rule for f in told([1.0] * 30 + [NAN] * 40, [2.0] * 30 + [NAN] * 40)] == ["nonfinite-loss"]


def test_a_loss_that_grows_under_calm_gradients_is_an_objective_that_changed() -> None:
    assert told([1.0] * 70, [2.0] * 30 + [9.0] * 40).findings == ()


@pytest.mark.parametrize(("threshold", "count"), [(None, 0), (3.0, 2), (1e6, 0)])
def test_a_fixed_threshold_gives_one_finding_a_stretch_and_only_where_asked_for(threshold: float | None, count: int) -> None:
    book = Book(MLP)
    for step, norm in enumerate([1.0, 4.0, 5.0, 1.0, 6.0]):
        book.step(step, {"a.weight:param_grad": [norm], "b.weight:param_grad": [0.0]})
    stretches = diagnose(book.run, rules=["exploding-grad"], grad_norm_threshold=threshold).findings
    merged = 1 if count else 0  # one rule and one origin: one finding, from the first to the last step
    assert len(stretches) == merged
    if stretches:
        assert (stretches[0].first_step, stretches[0].last_step, stretches[0].evidence["occurrences"]) == (1, 4, count)
        assert stretches[0].module == "a"


def moved(ratio: float, losses: Sequence[float], weight: float = 1.0) -> Diagnosis:
    book = Book(MLP)
    for step, loss in enumerate(losses):
        size = ratio if step == 0 else 1e-3
        changes = {f"{m}.weight:update": size * WAVE for m in "ab"} | {f"{m}.weight:param": weight * WAVE for m in "ab"}
        book.step(step, changes | {"loss:loss": [loss]})
    return diagnose(book.run)


def test_updates_as_large_as_the_weights_that_raise_the_loss_are_too_high_a_learning_rate() -> None:
    found = moved(2.0, [2.3, 60.0, 8.0]).findings[0]
    assert (found.rule, found.severity, found.where, found.first_step) == ("lr-too-high", "error", "optimizer", 0)
    assert "2 times the size of the weights" in found.message


@pytest.mark.parametrize(("ratio", "losses"), [(0.4, [2.3, 60.0, 8.0]), (2.0, [2.3, 1.0, 0.5])], ids=["smaller", "loss falls"])
def test_a_smaller_update_or_a_falling_loss_is_sound(ratio: float, losses: list[float]) -> None:
    assert moved(ratio, losses).findings == ()


def test_a_zero_initialised_weight_counts_as_large_as_glorot_would_make_it() -> None:
    """Shape (8, 8): sqrt(2 / 16) = 0.354 against an update of rms 0.1 * 0.760."""
    assert moved(0.1, [2.3, 60.0, 8.0], weight=0.0).findings == ()


def test_an_explosion_after_a_few_quiet_steps_is_the_learning_rates_too() -> None:
    book = Book(MLP)
    for step, (ratio, loss) in enumerate([(0.03, 2.3)] * 6 + [(8.0, 33.0), (12.0, 440.0), (44.0, 1.2e5)] + [(0.4, 4.6)] * 5):
        book.step(step, {f"{m}.weight:update": ratio * WAVE for m in "ab"} | {"loss:loss": [loss]})
    found = diagnose(book.run).findings[0]
    assert (found.rule, found.first_step, found.last_step) == ("lr-too-high", 6, 8)


def test_one_leap_of_the_gradient_is_not_called_a_blow_up() -> None:
    book = Book(MLP).steps(0, 7).step(8, {"a.weight:param_grad": 1e30 * WAVE}).step(9, {"a.weight:param_grad": [NAN]})
    assert [f.rule for f in diagnose(book.run)] == ["nonfinite-backward"]
