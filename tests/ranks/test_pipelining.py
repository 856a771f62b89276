"""Pipeline stages, each on a rank of its own: what the run says of every module is what one process in float64 says of the whole batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hookscope as hs

from ._launch import launched_well
from ._nets import STEPS, truth
from ._oracle import numbers_of

MICROS, SCHEDULES = 4, ("gpipe", "1f1b")  # as in _pipelining.py

pytestmark = pytest.mark.slow  # real processes, each of which loads torch


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, `how/schedule`; the ranks have found that a watch changes no bit."""
    to = tmp_path_factory.mktemp("pipelines")
    launched_well("_pipelining.py", str(to))
    return to


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("how", ["split", "traced"])
def test_a_stage_is_recorded_under_the_names_of_the_model(runs: Path, how: str, schedule: str) -> None:
    run, expected = hs.Run(runs / how / schedule), truth()
    for name in expected[0]:
        if name == "loss":
            continue
        times = MICROS if name.endswith(":output_grad") else 1  # the loss of a micro-batch is a mean over that
        first = 1 if how == "split" and name.endswith(":output") else 0  # torch has run such a stage once, to learn what it returns
        right = [numbers_of(step[name] * times) for step in expected]
        assert run[name, "count"].values[first:].tolist() == [one["count"] for one in right[first:]], name
        for quantity in ("rms", "min", "max"):
            tolerance = (1e-3 if name.endswith(":update") else 2e-5) * max(one["absmax"] for one in right)
            found = run[name, quantity].values[first:]
            np.testing.assert_allclose(found, [one[quantity] for one in right[first:]], rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_loss_is_that_of_the_last_stage(runs: Path, schedule: str) -> None:
    loss = hs.Run(runs / "traced" / schedule).rank(1)["loss", "mean"]
    assert loss.steps.tolist() == list(range(STEPS))
    np.testing.assert_allclose(loss.values, [float(step["loss"]) for step in truth()], rtol=1e-5)


def test_the_division_by_micro_batches_is_told_as_clipping(runs: Path) -> None:
    run = hs.Run(runs / "traced" / "1f1b")
    before, after = run["second.up.weight:param_grad/preclip", "rms"], run["second.up.weight:param_grad", "rms"]
    np.testing.assert_allclose(before.values, MICROS * after.values, rtol=1e-6)
