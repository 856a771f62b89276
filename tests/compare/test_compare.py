"""`compare`: real recorded runs, alike and not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import hookscope as hs
from hookscope._cli import main
from hookscope._compare._noise import score, variation

Train = Callable[..., Path]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """A run of a small regression; what differs is given."""

    def run(*, seed: int = 0, change_at: int | None = None, act: type[nn.Module] = nn.ReLU, steps: int = 24, **asked: Any) -> Path:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 8), act(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        data = torch.Generator().manual_seed(1)
        path = tmp_path_factory.mktemp("run") / "r"
        with hs.watch(model, optimizer, to=path, on_finding="ignore", **asked):
            for i in range(steps):
                if i == change_at:
                    optimizer.param_groups[0]["lr"] = 0.1
                x = torch.randn(16, 4, generator=data)
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
                optimizer.step()
        return path

    return run


@pytest.fixture(scope="module")
def base(train: Train) -> Path:
    return train()


def test_the_same_training_twice_is_equal_to_the_last_bit(base: Path, train: Train) -> None:
    found = hs.compare(base, hs.Run(train()))
    assert found
    assert (found.first_step, found.first_site, found.settings) == (None, None, ())
    assert found.verdict.startswith("equal to the last bit in 24 common steps")
    assert found.significant == ()


def test_another_seed_parts_at_the_weights_of_the_first_step_and_means_little(base: Path, train: Train) -> None:
    found = hs.compare(base, train(seed=3))
    assert not found
    assert (found.first_step, found.first_site) == (0, "0.weight:param")
    assert found.significant == ()


@pytest.mark.parametrize("step", [1, 12])
def test_a_changed_learning_rate_is_found_at_its_step(base: Path, train: Train, step: int) -> None:
    found = hs.compare(base, train(change_at=step))
    assert (found.first_step, found.first_site) == (step, "lr")
    first = {change.site: change.first_step for change in found}
    assert first["0.weight:update"] == step
    assert first["0.weight:param"] == first["loss"] == step + 1  # the weights of a step are those before its update
    assert [change.site for change in found.significant] == ["lr"]


def test_another_layer_is_named_with_its_class(base: Path, train: Train) -> None:
    found = hs.compare(base, train(act=nn.Tanh))
    assert (found.first_step, found.first_site) == (0, "1:output")
    assert "`1:output`: class ReLU in a, Tanh in b" in found.verdict or "`1:output_grad`: class ReLU in a, Tanh in b" in found.verdict


def test_settings_and_sites_that_one_run_lacks_are_listed(base: Path, train: Train) -> None:
    found = hs.compare(base, train(every=2, select="0"))
    assert ("every", 1, 2) in found.settings
    assert found.steps == 12
    assert "2:output" in found.only_a
    assert found.only_b == ()
    assert found.first_step is None
    assert not found  # equal where both looked, but they did not look at the same


def test_a_run_that_ended_early_is_not_equal(base: Path, train: Train) -> None:
    found = hs.compare(base, short := train(steps=10))
    assert not found
    assert (found.first_step, found.steps, found.steps_only_a, found.steps_only_b) == (None, 10, 14, 0)
    assert found.verdict.startswith("equal to the last bit in 10 common steps")
    assert found.verdict.endswith("; 14 steps only in a, a ends at step 23 and b at step 9")
    assert hs.compare(short, base).steps_only_b == 14


def test_sites_can_be_chosen(base: Path, train: Train) -> None:
    found = hs.compare(base, train(change_at=5), select="*.weight:param")
    assert {change.site for change in found} == {"0.weight:param", "2.weight:param"}
    assert found.first_step == 6


def test_the_worst_site_comes_first_and_json_is_strict(base: Path, train: Train) -> None:
    found = hs.compare(base, train(change_at=4))
    scores = [change.score for change in found]
    assert scores == sorted(scores, reverse=True)
    document = json.loads(found.to_json())
    assert (document["format"], document["same"], document["first_site"]) == (1, False, "lr")
    assert str(found).splitlines()[0].startswith("the runs part at step 4 at `lr`, equal to the last bit until step 4")


def test_runs_without_common_steps_are_refused(base: Path, train: Train) -> None:
    with pytest.raises(hs.UsageError, match="no step in common"):
        hs.compare(base, train(steps=0))


def test_the_command_prints_json_and_fails_as_asked(base: Path, train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    same, other = str(train()), str(train(seed=3))
    assert main(["compare", str(base), same]) == 0
    assert "equal to the last bit" in capsys.readouterr().out
    assert main(["compare", str(base), other]) == 1
    assert main(["compare", str(base), other, "--fail-on", "significant"]) == 0
    assert main(["compare", str(base), other, "--fail-on", "never", "--json"]) == 0
    shown = capsys.readouterr().out
    assert json.loads(shown[shown.index("{\n") :])["same"] is False
    assert main(["compare", str(base), "nowhere"]) == 3


def test_variation_is_that_of_independent_noise_whatever_the_drift() -> None:
    noise = np.random.default_rng(0).normal(0.0, 0.1, 4000)
    assert variation(noise + np.linspace(0, 50, 4000)) == pytest.approx(0.1, rel=0.1)


def test_a_value_that_only_one_run_lost_is_infinitely_apart() -> None:
    assert math.isinf(score(np.array([1.0, np.nan]), np.array([1.0, 2.0])))
    assert score(np.array([np.nan, np.nan]), np.array([np.nan, np.nan])) == 0.0


@settings(deadline=None)
@given(st.lists(st.floats(0.5, 2.0), min_size=3, max_size=20), st.floats(0.01, 100.0))
def test_a_score_has_no_unit(values: list[float], factor: float) -> None:
    a = np.array(values)
    b = a[::-1].copy()
    assert score(a * factor, b * factor) == pytest.approx(score(a, b), rel=1e-9)
